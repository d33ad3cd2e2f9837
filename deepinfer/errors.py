"""The one tree of errors a user can meet.  A leaf: every folder may import it, it imports none.

A message says what is wrong, where, what was expected, and what to do.  ``exit_code`` is what the
command line returns when the error ends a run.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """``; did you mean ...?`` with the most similar known name, or nothing."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {matches[0]}?" if matches else ""


def printable(text: str) -> str:
    """``text`` without what controls a terminal: messages quote rows, names and libraries."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def on_one_line(text: str) -> str:
    """The same for what is one line of a log or a table, whatever a file is called."""
    return printable(text).replace("\n", "\\n")


class DeepInferError(Exception):
    """Base of all errors meant for a user.  Exit code 1: the engine failed."""

    exit_code = 1

    def __str__(self) -> str:
        return printable(super().__str__())


class EngineError(DeepInferError):
    """The engine cannot go on."""


class TensorError(EngineError):
    """A tensor of the wrong shape, dtype, device or layout was given to a kernel."""


class ConfigError(DeepInferError):
    """A setting, argument or size that cannot be honoured."""

    exit_code = 2


class CheckpointError(ConfigError):
    """A model folder that is missing, incomplete or not what its config says."""


class InputError(DeepInferError):
    """The input file cannot be read at all, or has too many bad rows."""

    exit_code = 4


class LockedError(DeepInferError):
    """Another run holds this output."""

    exit_code = 5


class RowError(DeepInferError):
    """One row is unusable.  It becomes an error row and never ends the run.

    ``kind`` is a short stable word for the error file and the report, such as ``invalid_json``.
    """

    exit_code = 3

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
