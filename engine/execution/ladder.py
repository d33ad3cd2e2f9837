"""Sizes of decode steps on a GPU: padded, so that few graphs serve every step."""

from __future__ import annotations

from bisect import bisect_left
from functools import cache

_FINE_FROM = 256  # from here on padding costs more than a graph


def ladder_size(count: int) -> int:
    """The step of the ladder 1, 2, 3, 4, 6, 8, 12, ..., 192, 256, 320, 384, 448, 512, 640, ... for
    so many requests or tokens."""
    sizes = ladder(1 << (count - 1).bit_length())
    return sizes[bisect_left(sizes, count)]


@cache
def ladder(most: int) -> tuple[int, ...]:
    """Every step from 1 up to the one for ``most``: two between powers of two, then four."""
    sizes = [1]
    while sizes[-1] < most:
        last = sizes[-1]
        power = 1 << (last.bit_length() - 1)
        sizes.append(last + max(1, power // (4 if power >= _FINE_FROM else 2)))
    return tuple(sizes)
