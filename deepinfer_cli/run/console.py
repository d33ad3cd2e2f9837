"""Messages on stderr: live progress on a terminal, timestamped lines elsewhere, or nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Protocol

from deepinfer.errors import on_one_line
from deepinfer_cli.report.pages.words import counted
from deepinfer_cli.stdio import stderr_stream

from .background import every

if TYPE_CHECKING:
    from deepinfer_cli.report.report import Report

_PLAIN_SECONDS = 5.0
_PLAIN_SECONDS_LATER = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The progress of a run; unknown values are None."""

    rows: int
    total_rows: int | None
    is_estimate: bool
    running: int
    errors: int
    tokens_per_s: float
    acceptance: float | None
    elapsed_s: float
    eta_s: float | None
    rows_per_s: float = 0.0
    is_stopping: bool = False  # only running rows will be finished

    @property
    def share(self) -> float | None:
        return min(1.0, self.rows / self.total_rows) if self.total_rows else None


class Console(Protocol):
    def say(self, text: str) -> None:
        """Print a line."""

    def warn(self, text: str) -> None:
        """Print a warning."""

    @contextmanager
    def watch(self, snapshot: Callable[[], Snapshot]) -> Iterator[None]:
        """Show progress until the end of the block."""

    def summarize(self, report: Report) -> None:
        """Print the table at the end of a run."""


def make_console(*, quiet: bool) -> Console:
    """The console that fits stderr: a terminal that can redraw lines, or anything else."""
    stderr = stderr_stream()
    if quiet or stderr is None:
        return QuietConsole()
    if stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        from .live import LiveConsole

        return LiveConsole(stderr)
    return PlainConsole(stderr)


class QuietConsole:
    """Prints nothing; errors are printed elsewhere."""

    def say(self, text: str) -> None:
        pass

    warn = say

    @contextmanager
    def watch(self, snapshot: Callable[[], Snapshot]) -> Iterator[None]:
        yield

    def summarize(self, report: Report) -> None:
        pass


class PlainConsole:
    """For logs: a timestamped line per message, and progress every few seconds."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def say(self, text: str) -> None:
        moment = time.strftime("%Y-%m-%d %H:%M:%S")
        print(moment, on_one_line(text), file=self._file, flush=True)

    def warn(self, text: str) -> None:
        self.say(f"warning: {text}")

    @contextmanager
    def watch(self, snapshot: Callable[[], Snapshot]) -> Iterator[None]:
        wait_s = _PLAIN_SECONDS

        def report() -> None:
            nonlocal wait_s
            now = snapshot()
            self.say(" · ".join(progress_words(now)))
            # Fewer lines in long runs: about twenty per factor of ten in time.
            wait_s = min(max(_PLAIN_SECONDS, now.elapsed_s / 20), _PLAIN_SECONDS_LATER)

        with every(lambda: wait_s, report):
            yield

    def summarize(self, report: Report) -> None:
        from deepinfer_cli.report.summary_table import summary_lines

        for label, text in summary_lines(report):
            print(f"  {label:<11} {text}", file=self._file, flush=True)


def progress_words(now: Snapshot) -> list[str]:
    """The parts of a progress line, most important first."""
    rows = f"{now.rows:,} rows"
    if now.total_rows:
        about = "about " if now.is_estimate else ""
        rows = f"{now.rows:,} of {about}{now.total_rows:,} rows"
    words = [rows]
    if now.tokens_per_s:
        words.append(f"{now.tokens_per_s:,.0f} tokens/s")
    else:
        words.append(f"{now.running:,} in progress" if now.running else "starting")
    if now.is_stopping and now.running:
        words.append(f"{counted(now.running, 'row')} to finish before it stops")
    elif now.eta_s is not None:
        words.append(f"{duration(now.eta_s)} left")
    if now.errors:
        words.append(counted(now.errors, "error"))
    if now.acceptance is not None:
        words.append(f"{now.acceptance:.0%} of drafts accepted")
    return words


def duration(seconds: float) -> str:
    """``42s``, ``3m 05s``, ``2h 10m``, ``4d 03h``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3_600:
        return f"{whole // 60}m {whole % 60:02}s"
    if whole < 86_400:
        return f"{whole // 3_600}h {whole % 3_600 // 60:02}m"
    return f"{whole // 86_400}d {whole % 86_400 // 3_600:02}h"
