"""Tile shapes of the Gluon GEMMs on packed weights, and a cost model that selects the fastest.

All tiles accumulate in the same order: the choice does not change the bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, erfc, fsum, sqrt
from statistics import mean
from typing import ClassVar

from deepinfer.kernels.launch import cdiv, multiprocessors

from .hopper_weights import HopperWeight


@dataclass(frozen=True)
class Speed:
    """Measured on an H200: resident programs per SM, and the time of one of them."""

    programs: int
    us_per_group: float  # 128 of K
    us_per_tile: float


@dataclass(frozen=True)
class NarrowTile:
    """64 columns (rows of the weight) by ``rows`` rows of activations; stages of 256 along K."""

    rows: int
    stages: int
    speed: Speed

    columns: ClassVar[int] = 64


@dataclass(frozen=True)
class WideTile:
    """``rows`` by ``columns`` for weights of a format (1: E4M3, 2: FP4); stages of 128 along K.

    ``registers``: per thread of the second consumer warpgroup, ``decode_registers``: of the decoder
    warpgroup; the first consumer gets the rest.  All were tuned by measurement.  ``unroll``:
    k-steps of a square tile that are pipelined without draining the tensor cores.
    """

    form: int
    rows: int
    columns: int
    stages: int
    registers: int
    decode_registers: int
    speed: Speed
    unroll: int = 4

    @property
    def constants(self) -> dict[str, int]:
        return {
            "STAGES": self.stages,
            "GROUP_M": 8,
            "UNROLL": self.unroll,
            "REGISTERS": self.registers,
            "DECODE_REGISTERS": self.decode_registers,
        }


@dataclass(frozen=True)
class TripleTile:
    """192 rows by 128 columns for E4M3 weights; stages of 128 along K."""

    speed: Speed
    stages: int = 4
    registers: int = 160

    rows: ClassVar[int] = 192
    columns: ClassVar[int] = 128


@dataclass(frozen=True)
class SlimTile:
    """128 rows by 80 columns for a single E4M3 weight; stages of 128 along K."""

    speed: Speed
    stages: int = 7
    registers: int = 216

    rows: ClassVar[int] = 128
    columns: ClassVar[int] = 80


Tile = NarrowTile | WideTile | TripleTile | SlimTile

WIDE_FP8 = WideTile(1, 128, 256, 4, 240, 0, Speed(1, 0.82, 1.7))
SQUARE_FP8 = WideTile(1, 128, 128, 5, 216, 0, Speed(1, 0.38, 1.0))
WIDE_FP4 = WideTile(2, 256, 128, 3, 208, 72, Speed(1, 0.83, 2.0))
WIDE = (WIDE_FP8, SQUARE_FP8, WIDE_FP4)
TRIPLE = TripleTile(Speed(1, 0.57, 1.4))
SLIM = SlimTile(Speed(1, 0.325, 1.0))
_SWIGLU_US = 2.5 / 3.5e6  # per gate or up value: 2.5 bytes at 3.5 TB/s
# By format of the weight: for up to 16 rows, and for more.
_FEW_ROWS = {1: NarrowTile(16, 4, Speed(3, 0.2, 0.5)), 2: NarrowTile(16, 2, Speed(7, 0.6, 0.5))}
# For many experts, by the mean number of rows per expert: a second tile of an expert costs as much
# as the first, and padding rows are copied as well.  Measured with 48 and 384 experts.
_MANY_EXPERTS = 48
_ROWS_OF_EXPERTS = {
    1: ((9, NarrowTile(16, 3, Speed(3, 0.76, 0.5))), (22, NarrowTile(32, 3, Speed(3, 0.78, 0.5)))),
    2: ((10, _FEW_ROWS[2]), (28, NarrowTile(32, 2, Speed(6, 0.86, 0.5)))),
}
_MORE_ROWS: dict[int, tuple[Tile, ...]] = {
    1: (NarrowTile(64, 3, Speed(2, 0.36, 0.5)), WIDE_FP8, SQUARE_FP8, TRIPLE),
    2: (NarrowTile(64, 2, Speed(4, 0.70, 0.5)), NarrowTile(128, 2, Speed(2, 0.61, 0.5)), WIDE_FP4),
}
# For a single weight: a narrow program alone on an SM is faster.
_ALONE = NarrowTile(64, 3, Speed(1, 0.27, 0.5))
_MOST_EMPTY = 32  # padding rows of the last slim tile: with more it was slower than narrow tiles


def hopper_tile(weight: HopperWeight, rows: int, group_columns: int = 0) -> Tile:
    """The fastest tile if each member of ``weight`` has about ``rows`` rows of activations: the
    mean of the costs of equal and of random (Poisson) numbers of rows.

    ``group_columns``, unless it is 0: a tile must not cross a multiple of it.
    """
    if weight.members >= _MANY_EXPERTS:
        for most, tile in _ROWS_OF_EXPERTS[weight_form(weight)]:
            if rows <= most:
                return tile
    at_once = multiprocessors(weight.values.device)
    sizes = weight.num_rows, weight.k
    form = weight_form(weight)
    return fastest_tile(
        form, weight.members, *sizes, rows, at_once, weight.is_gated, group_columns
    )[0]


@lru_cache(maxsize=4096)
def fastest_tile(
    form: int,
    members: int,
    num_rows: int,
    k: int,
    rows: int,
    at_once: int,
    is_gated: bool,
    group_columns: int = 0,
) -> tuple[Tile, float]:
    """The tile of ``hopper_tile`` and its predicted time in microseconds, SwiGLU included.

    ``at_once``: the number of SMs.
    Tail tiles that two programs share (``num_work_units``) count as a whole wave, though they take
    0.75 to 1.0 of one: counted as less, layers would get square tiles where 192 x 128 are faster.
    """

    def microseconds(tile: Tile) -> float:
        columns = cdiv(num_rows, tile.columns)
        tiles = [float(cdiv(rows, tile.rows))]
        if members > 1:
            tiles.append(_tiles_at_random(rows, tile.rows))
        waves = [ceil(members * n * columns / (at_once * tile.speed.programs)) for n in tiles]
        wave = k / 128 * tile.speed.us_per_group + tile.speed.us_per_tile
        product: float = mean(waves) * wave
        # Only WIDE_FP8 applies SwiGLU in its epilogue; else a separate kernel reads gates and ups.
        apart = 0.0 if tile is WIDE_FP8 or not is_gated else _SWIGLU_US * members * rows * num_rows
        return product + apart

    few = _FEW_ROWS[form]
    if rows <= few.rows:
        return few, microseconds(few) if rows else 0.0
    candidates = _MORE_ROWS[form]
    if form == 1 and members == 1:
        candidates += (_ALONE,)
        if -rows % SLIM.rows <= _MOST_EMPTY:
            candidates += (SLIM,)
    whole = (tile for tile in candidates if group_columns % tile.columns == 0)
    fastest = min(whole, key=microseconds)
    return fastest, microseconds(fastest)


def _tiles_at_random(rows: int, tile_rows: int) -> float:
    """Expected number of tiles of a member whose number of rows is Poisson with mean ``rows``."""
    starts = range(0, 2 * rows + tile_rows, tile_rows)
    return fsum(erfc((start - rows) / sqrt(2 * rows)) / 2 for start in starts)


def weight_form(weight: HopperWeight) -> int:
    """1: E4M3, 2: FP4."""
    return 1 if weight.exponents is None else 2
