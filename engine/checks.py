"""Type and range checks of values from users.  Types are exact: a bool is not a number here."""

from __future__ import annotations

from collections.abc import Sequence, Set


def is_whole(value: object, low: float, high: float) -> bool:
    """Whether ``value`` is an ``int`` from ``low`` to ``high``."""
    return type(value) is int and low <= value <= high


def is_number(value: object, low: float, high: float) -> bool:
    """Whether ``value`` is an ``int`` or ``float`` from ``low`` to ``high``; NaN is not."""
    return isinstance(value, int | float) and type(value) is not bool and low <= value <= high


def is_list(value: object, kind: type) -> bool:
    """Whether ``value`` is a sequence or set whose items are all exactly of type ``kind``."""
    return isinstance(value, Sequence | Set) and all(type(item) is kind for item in value)
