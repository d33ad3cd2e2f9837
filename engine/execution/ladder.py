"""Sizes of decode steps on a GPU: padded, so that few graphs serve every step."""

from __future__ import annotations


def ladder_size(count: int) -> int:
    """The step of the ladder 1, 2, 3, 4, 6, 8, 12, 16, ... for so many requests or tokens."""
    power = 1 << (count - 1).bit_length()
    return power * 3 // 4 if power > 2 and count <= power * 3 // 4 else power
