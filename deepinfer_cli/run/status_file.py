"""``status.json`` in the folder of an unfinished run: its progress, for ``deepinfer status``."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from deepinfer_cli.settings.layers import Resolved
from deepinfer_cli.strict_json import read_json

from .console import Snapshot

NAME = "status.json"
_SCHEMA = "deepinfer.status/1"
_NEEDED: dict[str, Any] = {
    **dict.fromkeys(("command", "input", "host", "phase"), str),
    "folder": str | None,
    **dict.fromkeys(("updated", "elapsed_s", "tokens_per_s", "rows_per_s"), int | float),
    **dict.fromkeys(("process", "rows", "errors", "running"), int),
    **dict.fromkeys(("total_rows", "eta_s"), int | float | None),
}


class StatusFile:
    """Rewritten atomically while a run is active.

    ``command``: the command that resumes the run, in the current folder.
    """

    def __init__(self, folder: Path, *, command: str, source: str) -> None:
        self._path = folder / NAME
        self._head = {
            "schema": _SCHEMA,
            "process": os.getpid(),
            "host": socket.gethostname(),
            "folder": current_folder(),
            "command": command,
            "input": source,
        }

    def write(self, snapshot: Snapshot, *, phase: str | None = None) -> None:
        """phase: starting, answering or writing, by default by the snapshot.  Ignores a full
        disk."""
        numbers = dataclasses.asdict(snapshot)
        phase = phase or ("answering" if snapshot.rows or snapshot.running else "starting")
        status = self._head | {"updated": time.time(), "phase": phase} | numbers
        fresh = self._path.with_name(NAME + ".new")
        with suppress(OSError):
            fresh.write_text(json.dumps(status) + "\n", encoding="utf-8")
            fresh.replace(self._path)


def read_status(folder: Path) -> dict[str, Any] | None:
    """The status of the last run in ``folder``, None if there is none."""
    try:
        status = read_json((folder / NAME).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    is_ours = isinstance(status, dict) and status.get("schema") == _SCHEMA
    is_whole = is_ours and all(isinstance(status.get(n), kind) for n, kind in _NEEDED.items())
    return status if is_whole else None


def current_folder() -> str | None:
    """The current folder; None if it was deleted."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def command_line(arguments: Sequence[str], resolved: Resolved) -> str:
    """The shell command of this run, with the environment variables that set settings."""
    variables = {origin for origin in resolved.origins.values() if origin.isupper()}
    if "DEEPINFER_CONFIG" in os.environ:
        variables.add("DEEPINFER_CONFIG")
    parts = [f"{name}={shlex.quote(os.environ[name])}" for name in sorted(variables)]
    return " ".join([*parts, shlex.join(["deepinfer", *arguments])])
