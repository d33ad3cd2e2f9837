"""stdout for data; stderr for talk that must never end a run: its disk may be full, its terminal or
reader gone."""

from __future__ import annotations

import io
import json
import os
import sys
from contextlib import suppress
from typing import IO, TextIO, cast

from deepinfer.errors import ConfigError, printable


class Talk(io.TextIOBase):
    """Text straight to a descriptor; what that does not take is dropped in silence.  Nothing is
    held back, which Python would try once more to write when it ends."""

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
    """stdout.  Raises: ConfigError if that was closed when the program began."""
    if sys.stdout is None:
        raise ConfigError("stdout is closed; redirect it to a file, or to /dev/null")
    return sys.stdout


def show_every_character() -> None:
    """What stdout's encoding lacks, such as a byte of a file's name, is printed as an escape."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def print_json(value: object) -> None:
    """Indented on stdout, in UTF-8 whatever the terminal's encoding.  Raises: ConfigError."""
    stream = data_stream()
    stream.flush()
    text = json.dumps(value, ensure_ascii=False, indent=1) + "\n"
    stream.buffer.write(text.encode("utf-8", "replace"))
    stream.buffer.flush()


def talk() -> IO[str] | None:
    """To stderr; None if that was closed when the program began."""
    return None if sys.stderr is None else cast("IO[str]", Talk(2))


def say(text: str) -> None:
    """A line on stderr."""
    if (stderr := talk()) is not None:
        print(printable(text), file=stderr, flush=True)


def complain(message: str) -> None:
    """The same in the program's name."""
    say(f"deepinfer: {message}")


def hold_standard_descriptors() -> None:
    """Nothing that is opened later becomes descriptor 0, 1 or 2, into which any library may write,
    also where whoever started the program closed them."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest that is free: this one
