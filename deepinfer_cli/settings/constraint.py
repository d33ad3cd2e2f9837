"""What ``--regex``, ``--grammar`` and ``--json-schema`` hold the answers of a run to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deepinfer.errors import ConfigError, RowError
from deepinfer.recipes.constraints.fields import field_constraint, schema_format
from deepinfer.recipes.constraints.spec import json_schema

from .settings import Settings, flag_name

_SETTINGS = ("regex", "grammar", "json_schema")


def run_constraint(settings: Settings) -> dict[str, Any] | None:
    """The constraint as a row would say it, for rows that have none; None if all are free.

    Raises: ConfigError if there is more than one, a file cannot be read or says something wrong.
    """
    given = [name for name in _SETTINGS if getattr(settings, name) is not None]
    if not given:
        return None
    flags = " and ".join(map(flag_name, given))
    if len(given) > 1:
        raise ConfigError(f"{flags}: answers are held to one of them; keep one")
    name, value = given[0], getattr(settings, given[0])
    try:
        if name == "json_schema":
            return {"response_format": schema_format(json_schema(_text(value, flags)))}
        fields = {name: value if name == "regex" else _text(value, flags)}
        field_constraint(fields)
        return fields
    except RowError as error:
        where = "" if name == "regex" else f" {value}"
        raise ConfigError(f"{flags}{where}: {error.kind}: {error}") from error


def answers_depend_on(constraint: dict[str, Any] | None) -> dict[str, str]:
    """What a run must share with an earlier part of it to go on: files may change in between."""
    spec = None if constraint is None else field_constraint(constraint)
    return {} if spec is None else {"constraint": spec.digest}


def _text(path: str, flag: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{flag}: cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{flag}: {path} is not UTF-8 text") from error
