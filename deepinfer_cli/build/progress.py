"""Progress of a build: a bar on a terminal, else a line every few seconds."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

from deepinfer_cli.stdio import say, stderr_stream

if TYPE_CHECKING:
    from deepinfer.kernel_build import Progress

_PLAIN_SECONDS = 5.0


@contextmanager
def show_progress(*, quiet: bool) -> Iterator[Progress]:
    """Show progress on stderr until the end of the block."""
    stderr = stderr_stream()
    if quiet or stderr is None:
        yield lambda what, done, total: None
    elif stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        yield from _bar(stderr)
    else:
        yield _lines()


def _bar(stderr: IO[str]) -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (
        TimeElapsedColumn(),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
    )
    with Bar(*columns, console=Console(file=stderr), transient=True) as bar:
        number = bar.add_task("", total=None)

        def show(what: str, done: int, total: int) -> None:
            bar.update(number, description=what, completed=done, total=total or None)

        yield show


def _lines() -> Progress:
    shown = float("-inf")

    def show(what: str, done: int, total: int) -> None:
        nonlocal shown
        now = time.monotonic()
        if now - shown >= _PLAIN_SECONDS or not total:
            shown = now
            count = f"{done}/{total} " if total else ""
            say(f"{count}{what}")

    return show
