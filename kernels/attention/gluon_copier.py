"""Producer of the Hopper attention kernel for rows that were decoded to bf16 beforehand.

In prefill many queries attend to the same rows, so these are decoded once, before the kernel.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from deepinfer.kernels.gluon_names import async_load, seen_as

from .gluon_query import fetch_query
from .gluon_work import (
    EMPTY,
    FULL,
    HALF,
    TILE,
    TILE_BF16,
    WIDTH,
    opaque_zero,
)

# [64 rows, 256 values]: a warp copies whole 128-byte lines of four rows, so that a thread needs few
# addresses.
HALF_ROWS = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]))


@gluon.jit
def _listed_rows(
    item, tile, num_items, sources, WINDOW_LENGTH: gl.constexpr, MAIN_LENGTH: gl.constexpr
):
    """Row indices of a tile of 64 keys, [64] i32, -1 for an empty place."""
    WINDOW_TILES: gl.constexpr = (WINDOW_LENGTH + TILE - 1) // TILE
    is_window = tile < WINDOW_TILES
    length = gl.where(is_window, WINDOW_LENGTH, MAIN_LENGTH)
    place = gl.where(is_window, tile, tile - WINDOW_TILES) * TILE
    place = place + gl.arange(0, TILE, gl.SliceLayout(1, HALF_ROWS))
    base = gl.where(is_window, sources[2], sources[4]) + item.to(gl.int64) * length
    is_listed = (place < length) & (item < num_items)
    return gl.load(base + place, mask=is_listed, other=-1).to(gl.int32)


@gluon.jit
def copy_rows(
    shared, sources, num_items, WINDOW_LENGTH: gl.constexpr, MAIN_LENGTH: gl.constexpr,
    TOTAL_TILES: gl.constexpr,
):  # fmt: skip
    """Fill the tiles of items in one piece: pairs of tiles, the last of which may have no keys."""
    WINDOW_TILES: gl.constexpr = (WINDOW_LENGTH + TILE - 1) // TILE
    NUM_TILES: gl.constexpr = (TOTAL_TILES + 1) // 2 * 2
    index = _listed_rows(gl.program_id(0), 0, num_items, sources, WINDOW_LENGTH, MAIN_LENGTH)
    phase = 1
    query_phase = 1
    for item in range(gl.program_id(0), num_items, gl.num_programs(0)):
        fetch_query(shared, sources[0], item, query_phase)
        for tile in range(NUM_TILES):
            slot = tile % 2
            is_last = tile == NUM_TILES - 1
            next_index = _listed_rows(
                gl.where(is_last, item + gl.num_programs(0), item),
                gl.where(is_last, 0, tile + 1),
                num_items, sources, WINDOW_LENGTH, MAIN_LENGTH,
            )  # fmt: skip
            rows = gl.where(tile < WINDOW_TILES, sources[1], sources[3])
            _copy_half(shared, rows, index, slot, 0, phase)
            # Addresses are recomputed for the second half, to save registers.
            _copy_half(shared, rows, index + opaque_zero(tile), slot, 1, phase)
            phase ^= slot
            index = next_index
        query_phase ^= 1


@gluon.jit
def _copy_half(shared, rows, index, slot, SIDE: gl.constexpr, phase):
    """Issue the copies of one half of the values of a tile once its buffer is free.

    With the second half, also store the bias of scores: -inf for empty places.
    """
    _, keys, _, biases, _, _, barriers = shared
    halves = seen_as(keys, gl.bfloat16, [4, TILE, HALF], TILE_BF16)
    column = SIDE * HALF + gl.arange(0, HALF, gl.SliceLayout(0, HALF_ROWS))
    source = rows + (index.to(gl.int64) * WIDTH)[:, None] + column[None, :]
    mbarrier.wait(barriers.index(EMPTY + 2 * slot + SIDE), phase)
    async_load(halves.index(2 * slot + SIDE), source, mask=(index >= 0)[:, None])
    full = barriers.index(FULL + 2 * slot + SIDE)
    async_copy.mbarrier_arrive(full, increment_count=False)
    if SIDE == 1:
        bias = gl.where(index >= 0, 0.0, float("-inf"))
        biases.index(slot).store(bias.to(gl.bfloat16))
        mbarrier.arrive(full, count=1)
