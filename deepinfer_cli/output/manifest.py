"""``run.json`` in the folder of an unfinished run: the basis of its answers."""

from __future__ import annotations

import json
import os
from pathlib import Path

from deepinfer.errors import ConfigError
from deepinfer_cli.strict_json import read_json
from deepinfer_cli.typed_json import WrongForm, from_json, to_json

from .basis import Basis
from .journal import holds_rows

NAME = "run.json"
_SCHEMA = "deepinfer.partial/1"


def write_manifest(folder: Path, basis: Basis) -> None:
    """Record the basis of the run in ``folder``."""
    text = json.dumps({"schema": _SCHEMA, **to_json(basis)}, indent=1) + "\n"
    temporary = folder / f"{NAME}.new"
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / NAME)


def is_begun(folder: Path) -> bool:
    """Whether ``folder`` has an unfinished run."""
    return (folder / NAME).exists()


def read_manifest(folder: Path) -> Basis | None:
    """The basis of the unfinished run in ``folder``, None if there is none.

    Raises: ConfigError with advice if the file cannot be read, is damaged or from another version,
    or is missing although there are finished rows.
    """
    path = folder / NAME
    try:
        found = read_json(path.read_bytes())
        if not isinstance(found, dict) or found.get("schema") != _SCHEMA:
            raise WrongForm(f"it is not {_SCHEMA}")
        return from_json(Basis, found)
    except FileNotFoundError:
        if not holds_rows(folder):
            return None
        reason = "it is gone"
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
    except (ValueError, RecursionError) as error:
        reason = str(error)
    raise ConfigError(
        f"{path} is unusable ({reason}), so that the rows there cannot be resumed; "
        f"move {folder} away to start over"
    )
