"""The constraint of a run, from ``--regex``, ``--grammar`` or ``--json-schema``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deepinfer.errors import ConfigError, RowError
from deepinfer.recipes.constraints.fields import field_constraint, schema_format
from deepinfer.recipes.constraints.spec import json_schema
from deepinfer_cli.small_file import read_small

from .layers import Resolved

_SETTINGS = ("regex", "grammar", "json_schema")
_SHOWN = 80  # characters of an expression


def run_constraint(resolved: Resolved) -> dict[str, Any] | None:
    """The constraint, with the fields of a row, for rows that have none; None without one.

    It is compiled once here, so that errors are found before anything is loaded.
    Raises: ConfigError with setting, file, position and reason, if there are several constraints,
    a file cannot be read, or a constraint is malformed or cannot be enforced.
    """
    settings = resolved.settings
    given = [name for name in _SETTINGS if getattr(settings, name) is not None]
    if not given:
        return None
    named = [_as_given(name, resolved.origins[name]) for name in given]
    if len(given) > 1:
        words = " and ".join(named)
        raise ConfigError(f"{words}: only one constraint is allowed; keep one")
    name, where, value = given[0], named[0], getattr(settings, given[0])
    text = value if name == "regex" else _text(value, where)
    shown = value if name != "regex" or len(value) <= _SHOWN else value[:_SHOWN] + "…"
    where = f"{where} {shown}"
    try:
        fields = {name: text}
        if name == "json_schema":
            fields = {"response_format": schema_format(json_schema(text))}
        _try(fields)
        return fields
    except RowError as error:
        raise ConfigError(f"{where}: {error.kind}: {error}") from error


def answers_depend_on(constraint: Mapping[str, Any] | None) -> dict[str, str]:
    """A digest that must be the same when a run is resumed: files may have changed."""
    spec = None if constraint is None else field_constraint(constraint)
    return {} if spec is None else {"constraint": spec.digest}


def _try(fields: dict[str, Any]) -> None:
    """Raises: RowError."""
    from deepinfer.recipes.constraints.check import check_compiles  # slow to import

    spec = field_constraint(fields)
    assert spec is not None
    check_compiles(spec)


def _as_given(name: str, origin: str) -> str:
    """The flag or variable that set it, or the line of the file and the name of the setting."""
    return f"{origin}: {name}" if ":" in origin else origin


def _text(path: str, where: str) -> str:
    try:
        return read_small(Path(path)).decode("utf-8")
    except OSError as error:
        raise ConfigError(f"{where}: cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where}: {path} is not UTF-8 text") from error
