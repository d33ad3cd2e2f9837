"""All errors that a user can get.  Every package may import this module; it imports none of them.

A message says what is wrong, where, what was expected, and what to do.  ``exit_code`` is the exit
code of the command line when the error ends a run.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """``; did you mean ...?`` with the most similar known name, or nothing."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {matches[0]}?" if matches else ""


def printable(text: str) -> str:
    """``text`` without control characters: messages quote rows, names and libraries."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def on_one_line(text: str) -> str:
    """The same on a single line, for logs and tables: file names may contain newlines."""
    return printable(text).replace("\n", "\\n")


def json_name(value: object) -> str:
    """What a value of a row is, in the words of JSON; for other values, the name of their type."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case dict():
            return "an object"
        case list():
            return "a list"
    return type(value).__name__


class DeepInferError(Exception):
    """Base of all errors meant for a user.  Exit code 1: the engine failed."""

    exit_code = 1

    def __str__(self) -> str:
        return printable(super().__str__())


class EngineError(DeepInferError):
    """The engine cannot continue."""


class TensorError(EngineError):
    """A tensor of the wrong shape, dtype, device or layout was given to a kernel."""


class ConfigError(DeepInferError):
    """A setting, argument or size that is invalid or not supported."""

    exit_code = 2


class CheckpointError(ConfigError):
    """A model folder that is missing, incomplete or inconsistent with its config."""


class InputError(DeepInferError):
    """The input file cannot be read at all, or has too many bad rows."""

    exit_code = 4


class LockedError(DeepInferError):
    """Another run is writing this output."""

    exit_code = 5


class RowError(DeepInferError):
    """A single row is invalid.  It becomes an error row and never ends the run.

    ``kind`` is a stable identifier for the errors file and the report, such as ``invalid_json``.
    """

    exit_code = 3

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
