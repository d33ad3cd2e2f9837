"""Collects measured rows until they end, or until Ctrl-C, another signal or an error."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

Row = TypeVar("Row")

# Signals that batch systems and terminals send first; Ctrl-C already raises KeyboardInterrupt.
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class _Ended(KeyboardInterrupt):
    """A signal that ends a measurement, like Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def collect(rows: Iterable[Row]) -> tuple[list[Row], BaseException | None]:
    """The rows, and what ended them early, if anything: a signal, or an error after the first row,
    which ``exit_code`` raises again after the rows were saved.

    Raises: an error before the first row.
    """
    found: list[Row] = []
    try:
        with _ended_by_signals():
            found.extend(rows)
    except KeyboardInterrupt as interrupt:
        return found, interrupt
    except Exception as error:
        if not found:
            raise
        return found, error
    return found, None


def exit_code(ended: BaseException | None) -> int:
    """0, or 128 plus the signal number: 130 after Ctrl-C.  Raises: the error that ended the
    rows."""
    if isinstance(ended, Exception):
        raise ended
    if ended is None:
        return 0
    return 128 + (ended.number if isinstance(ended, _Ended) else signal.SIGINT)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Make signals that would end the process end the rows; ignored ones stay ignored."""

    def handle(number: int, frame: FrameType | None) -> None:
        raise _Ended(number)

    numbers = [number for number in _SIGNALS if signal.getsignal(number) == signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)
