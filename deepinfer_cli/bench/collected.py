"""Rows as they are measured, as far as Ctrl-C or an error lets them come."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

Row = TypeVar("Row")

INTERRUPTED = 130


def collect(rows: Iterable[Row]) -> tuple[list[Row], BaseException | None]:
    """The rows, and what ended them early if anything did: Ctrl-C, or an error after the first row,
    which ``exit_code`` raises again once the rows are kept.  Raises: an error before there was any.
    """
    found: list[Row] = []
    try:
        found.extend(rows)
    except KeyboardInterrupt as interrupt:
        return found, interrupt
    except Exception as error:
        if not found:
            raise
        return found, error
    return found, None


def exit_code(ended: BaseException | None) -> int:
    """0, or 130 after Ctrl-C.  Raises: the error that ended the rows."""
    if isinstance(ended, Exception):
        raise ended
    return 0 if ended is None else INTERRUPTED
