"""Live progress on a terminal: a bar and a line of numbers, at any width."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from deepinfer.errors import on_one_line
from deepinfer_cli.report.report import Report
from deepinfer_cli.report.summary_table import summary_lines

from .console import Snapshot, duration, progress_words

_WIDEST_BAR = 100


class LiveConsole:
    """Redraws a few lines on stderr; messages scroll above them."""

    def __init__(self, file: IO[str]) -> None:
        self._console = Console(file=file, highlight=False)

    def say(self, text: str) -> None:
        self._console.print(Text(on_one_line(text), style="dim"))

    def warn(self, text: str) -> None:
        self._console.print(Text(on_one_line(text), style="yellow"))

    @contextmanager
    def watch(self, snapshot: Callable[[], Snapshot]) -> Iterator[None]:
        live = Live(
            get_renderable=lambda: self._progress(snapshot()),
            console=self._console,
            refresh_per_second=4,
            transient=True,
        )
        with live:
            yield

    def summarize(self, report: Report) -> None:
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        for label, text in summary_lines(report):
            table.add_row(label, Text(text, style=_STYLES.get(label, "")))
        self._console.print()
        self._console.print(table)

    def _progress(self, now: Snapshot) -> RenderableType:
        width = min(self._console.width, _WIDEST_BAR)
        share = now.share
        tail = "" if share is None else f" {share:4.0%}"
        head = Text(f"{duration(now.elapsed_s):>7} ", style="dim")
        bar = ProgressBar(
            total=None if share is None else 1.0,
            completed=share or 0.0,
            width=width - len(head) - len(tail) - 1,
            pulse=share is None,
            style="bright_black",
            complete_style="cyan",
            finished_style="cyan",
            pulse_style="cyan",
        )
        line = Table.grid()
        line.add_row(head, bar, tail)
        return Group(line, self._numbers(now, width - 8))

    @staticmethod
    def _numbers(now: Snapshot, width: int) -> Text:
        """As many of the parts as fit on one line."""
        text = Text(" " * 8)
        used = 0
        for word in progress_words(now):
            part = word if not used else f" · {word}"
            if used + len(part) > width:
                break
            text.append(part, style="yellow" if " error" in word else "")
            used += len(part)
        return text


_STYLES = {"errors": "yellow", "stopped": "yellow", "failed": "red", "results": "bold"}
