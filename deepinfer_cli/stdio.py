"""stdout for data, stderr for messages.  A message must never end a run, even if the disk is full
or the terminal is gone."""

from __future__ import annotations

import io
import json
import os
import sys
from contextlib import suppress
from typing import IO, TextIO, cast

from deepinfer.errors import ConfigError, printable


class StderrWriter(io.TextIOBase):
    """Unbuffered text to a file descriptor; what cannot be written is dropped silently.  With a
    buffer, Python would fail at exit when it flushes it."""

    encoding = "utf-8"

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def fileno(self) -> int:
        return self._descriptor

    def write(self, text: str) -> int:
        left = text.encode("utf-8", "backslashreplace")
        with suppress(OSError):
            while left:
                left = left[os.write(self._descriptor, left) :]
        return len(text)


def data_stream() -> TextIO:
    """stdout.  Raises: ConfigError if it was closed when the program started."""
    if sys.stdout is None:
        raise ConfigError("stdout is closed; redirect it to a file, or to /dev/null")
    return sys.stdout


def show_every_character() -> None:
    """Print characters that stdout's encoding lacks, such as bytes of file names, as escapes."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def print_json(value: object) -> None:
    """Print indented JSON on stdout, always in UTF-8.  Raises: ConfigError."""
    stream = data_stream()
    stream.flush()
    text = json.dumps(value, ensure_ascii=False, indent=1) + "\n"
    stream.buffer.write(text.encode("utf-8", "replace"))
    stream.buffer.flush()


def stderr_stream() -> IO[str] | None:
    """stderr, unbuffered; None if it was closed when the program started."""
    return None if sys.stderr is None else cast("IO[str]", StderrWriter(2))


def say(text: str) -> None:
    """Print a line on stderr."""
    if (stderr := stderr_stream()) is not None:
        print(printable(text), file=stderr, flush=True)


def complain(message: str) -> None:
    """Print an error line, prefixed with the program's name."""
    say(f"deepinfer: {message}")


def hold_standard_descriptors() -> None:
    """Open descriptors 0, 1 and 2 if they were closed by the parent, so that no file opened later
    gets one of them: libraries may write to these."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
