"""For which numbers of rows ``gluon_joint.py`` is faster than two separate GEMMs, on an H200."""

from __future__ import annotations

from functools import lru_cache

from deepinfer.kernels.launch import cdiv

from .hopper_tile import WIDE_FP8, fastest_tile
from .parts_tiles import US_PER_BYTE, fastest_parts

ROWS = 128  # per tile of either GEMM
COLUMNS, PLAIN_COLUMNS = 256, 128
_US_PER_STEP, _US_PER_TILE = 0.85, 2.5  # gates and ups, k-steps of 128
_PLAIN_US_PER_STEP, _PLAIN_US_PER_TILE = 0.34, 0.7  # router, k-steps of 64
_LAUNCH_US = 3.5
_MOST_ROWS = 5120  # beyond, the predicted times differ by less than their error


@lru_cache(maxsize=4096)
def is_joint_faster(rows: int, n: int, m: int, k: int, parts: int, at_once: int) -> bool:
    """For ``n`` gates and ups, and ``m`` rows of the other weight with K split into ``parts``."""
    if rows > _MOST_ROWS:
        return False
    tile, gated_us = fastest_tile(1, 1, n, k, rows, at_once, True)
    launches = 1 if tile is WIDE_FP8 else 2  # a separate SwiGLU kernel
    apart = gated_us + fastest_parts(rows, m, k, parts, at_once)[1] + launches * _LAUNCH_US

    row_tiles = cdiv(rows, ROWS)
    rounds, busy = divmod(row_tiles * (n // COLUMNS), at_once)
    gated = k / 128 * _US_PER_STEP + _US_PER_TILE
    plain = k / (64 * parts) * _PLAIN_US_PER_STEP + _PLAIN_US_PER_TILE
    others = cdiv(row_tiles * cdiv(m, PLAIN_COLUMNS) * parts, at_once - busy) * plain
    logits = rows * m * 4 * parts * US_PER_BYTE
    return rounds * gated + max(gated * (busy > 0), others) + logits < apart
