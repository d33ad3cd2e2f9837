"""The sizes to which decode steps are padded on a GPU, so that few CUDA graphs are needed."""

from __future__ import annotations

from bisect import bisect_left
from functools import cache

_FINE_FROM = 256  # from this size on, more padding would cost more than more graphs


def padded_size(count: int) -> int:
    """The smallest of 1, 2, 3, 4, 6, 8, 12, ..., 192, 256, 320, 384, 448, 512, 640, ... that has
    room for ``count`` requests or tokens."""
    sizes = padded_sizes(1 << (count - 1).bit_length())
    return sizes[bisect_left(sizes, count)]


@cache
def padded_sizes(most: int) -> tuple[int, ...]:
    """All sizes up to the one for ``most``: two per power of two, then four."""
    sizes = [1]
    while sizes[-1] < most:
        last = sizes[-1]
        power = 1 << (last.bit_length() - 1)
        sizes.append(last + max(1, power // (4 if power >= _FINE_FROM else 2)))
    return tuple(sizes)
