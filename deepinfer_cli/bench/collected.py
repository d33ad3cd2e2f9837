"""Rows as they are measured, as far as Ctrl-C lets them come."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

Row = TypeVar("Row")

INTERRUPTED = 130


def collect(rows: Iterable[Row]) -> tuple[list[Row], int]:
    """All rows and 0; or, after Ctrl-C, those that were done and 130."""
    found: list[Row] = []
    try:
        found.extend(rows)
    except KeyboardInterrupt:
        return found, INTERRUPTED
    return found, 0
