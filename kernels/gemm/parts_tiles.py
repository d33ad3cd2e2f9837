"""Tile shapes of ``gluon_parts.py``, and a cost model that selects the fastest on SM90.

All tiles accumulate in the same order: the choice does not change the bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from deepinfer.kernels.launch import cdiv

_INPUTS = 64  # of K per step
US_PER_BYTE = 1 / 4e6  # of results, for the kernel that reads them


@dataclass(frozen=True)
class PartsTile:
    """``rows`` of x, stored ``out_rows`` at a time, by 64 ``subtiles`` rows of the weight; times of
    a k-step of 64 and of a tile's prologue and epilogue were measured on an H200."""

    rows: int
    subtiles: int
    stages: int
    out_rows: int
    us_per_step: float
    us_per_tile: float


TILES = (
    PartsTile(128, 3, 5, 32, 0.53, 1.8),
    PartsTile(64, 3, 5, 64, 0.36, 2.0),
    PartsTile(128, 1, 7, 64, 0.22, 0.6),
    PartsTile(64, 1, 12, 64, 0.12, 1.35),
)


def parts_tile(rows: int, n: int, k: int, parts: int, at_once: int) -> tuple[PartsTile, int]:
    """The fastest tile for ``rows`` of x, ``n`` of the weight and ``k`` of K on ``at_once`` SMs,
    and how many of the ``parts`` one program adds up: one or all."""
    return fastest_parts(rows, n, k, parts, at_once)[0]


@lru_cache(maxsize=4096)
def fastest_parts(
    rows: int, n: int, k: int, parts: int, at_once: int
) -> tuple[tuple[PartsTile, int], float]:
    """The result of ``parts_tile`` and its predicted time in microseconds."""

    def microseconds(form: tuple[PartsTile, int]) -> float:
        tile, added = form
        tiles = cdiv(rows, tile.rows) * cdiv(n, 64 * tile.subtiles) * parts // added
        steps = k // (_INPUTS * parts) * added
        waves = cdiv(tiles, at_once)
        product = waves * (steps * tile.us_per_step + tile.us_per_tile)
        return product + rows * n * 4 * parts // added * US_PER_BYTE

    fastest = min(((tile, added) for tile in TILES for added in (1, parts)), key=microseconds)
    return fastest, microseconds(fastest)
