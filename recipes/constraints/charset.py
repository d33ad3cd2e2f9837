"""Sets of characters as sorted ranges of code points."""

from __future__ import annotations

from collections.abc import Iterable

CharSet = tuple[tuple[int, int], ...]

MAX_CODE_POINT = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)
EMPTY: CharSet = ()


def union(*sets: Iterable[tuple[int, int]]) -> CharSet:
    """All ranges, sorted and merged."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(part for ranges in sets for part in ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def complement(ranges: CharSet) -> CharSet:
    """All characters that are not in ``ranges``; surrogates do not count as characters."""
    outside: list[tuple[int, int]] = []
    start = 0
    for low, high in union(ranges, (_SURROGATES,)):
        if low > start:
            outside.append((start, low - 1))
        start = high + 1
    if start <= MAX_CODE_POINT:
        outside.append((start, MAX_CODE_POINT))
    return tuple(outside)


EVERYTHING: CharSet = complement(EMPTY)


def is_disjoint(left: CharSet, right: CharSet) -> bool:
    """Whether the two sets have no character in common."""
    i = j = 0
    while i < len(left) and j < len(right):
        if left[i][1] < right[j][0]:
            i += 1
        elif right[j][1] < left[i][0]:
            j += 1
        else:
            return False
    return True


def to_regex(ranges: CharSet) -> str:
    """A regex character class; code points are escaped, so none is a metacharacter."""
    return "[" + "".join(f"{_escape(low)}-{_escape(high)}" for low, high in ranges) + "]"


def _escape(code_point: int) -> str:
    return f"\\x{{{code_point:x}}}"
