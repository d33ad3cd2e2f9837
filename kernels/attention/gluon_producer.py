"""Producer warpgroup of the Hopper attention kernel: gathers packed rows and decodes them to bf16.

A *unit* is 64 rows of 256 bytes: a main tile of 64 keys, or half of the values of a window tile.
Its two *parts* are in registers; once a part has been decoded, the same part of the next unit is
loaded (software pipelining).
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from deepinfer.kernels.gluon_names import seen_as

from .gluon_query import fetch_query
from .gluon_rows import (
    decode_main,
    decode_window,
    e4m3_factors,
    e8m0_factors,
    main_tables,
    rows_of,
    twice,
)
from .gluon_work import (
    EMPTY,
    FULL,
    HALF,
    TILE,
    first_unit,
    unit_after,
)

# Steps of 16 bytes from row to row.
WINDOW_STEP = gl.constexpr(33)
MAIN_STEP = gl.constexpr(18)
TILE_PAIRS = gl.constexpr(gl.NVMMASharedLayout(128, 32, 2))


# [64 rows, 32 words].  A thread loads 32 contiguous bytes and uses all scales of the words that it
# loads.  Eight lanes that store together have eight rows, so they use all banks.
VALUES = gl.constexpr(
    gl.DistributedLinearLayout(
        reg_bases=[[0, 1], [0, 2], [0, 4], [32, 0]],
        lane_bases=[[1, 0], [2, 0], [4, 0], [0, 8], [0, 16]],
        warp_bases=[[8, 0], [16, 0]],
        block_bases=[],
        shape=[64, 32],
    )
)
# One word of scales for every eight words of values.
SCALES = gl.constexpr(
    gl.DistributedLinearLayout(
        reg_bases=[[32, 0]],
        lane_bases=[[1, 0], [2, 0], [4, 0], [0, 1], [0, 2]],
        warp_bases=[[8, 0], [16, 0]],
        block_bases=[],
        shape=[64, 4],
    )
)
BY_ROW = gl.constexpr(gl.SliceLayout(1, VALUES.value))


@gluon.jit
def _load_index(
    item, unit, num_items, sources, PIECES: gl.constexpr, WINDOW_LENGTH: gl.constexpr,
    MAIN_LENGTH: gl.constexpr, WINDOW_TILES: gl.constexpr,
):  # fmt: skip
    """Row indices of a unit's 64 keys, [64] i32, -1 for an empty place."""
    is_window = unit < 2 * WINDOW_TILES
    length = gl.where(is_window, WINDOW_LENGTH, MAIN_LENGTH)
    place = gl.where(is_window, unit // 2, unit - 2 * WINDOW_TILES) * TILE
    place = place + gl.arange(0, TILE, BY_ROW)
    base = gl.where(is_window, sources[2], sources[4])
    is_listed = (place < length) & (item < num_items)
    start = (item // PIECES).to(gl.int64) * length
    return gl.load(base + start + place, mask=is_listed, other=-1).to(gl.int32)


@gluon.jit
def _load_part(
    index, unit, sources, SIDE: gl.constexpr, WINDOW_TILES: gl.constexpr
):  # fmt: skip
    """Half of a unit's values, [64, 32] i32, and words that contain its scales, [64, 4] i32.

    Scales are loaded as words, because the compiler waits too early for narrower loads.
    """
    is_window = unit < 2 * WINDOW_TILES
    half = unit % 2
    step = gl.where(is_window, WINDOW_STEP, MAIN_STEP)
    words = gl.where(is_window, sources[1], sources[3]).to(gl.pointer_type(gl.int32), bitcast=True)
    start = words + (gl.where(is_window, half * 64, 0) + SIDE * 32)
    place = (index.to(gl.int64) * step * 4)[:, None]
    column = gl.arange(0, 32, gl.SliceLayout(0, VALUES))
    values = gl.load(start + place + column[None, :], mask=(index >= 0)[:, None], other=0)
    index = gl.convert_layout(index, gl.SliceLayout(1, SCALES))
    piece = gl.arange(0, 4, gl.SliceLayout(0, SCALES))
    offset = gl.where(is_window, 128 + half * 2 + SIDE, 64 + SIDE * 4 + piece)
    place = (index.to(gl.int64) * step * 4)[:, None] + offset[None, :]
    return values, gl.load(words + place, mask=(index >= 0)[:, None], other=0)


@gluon.jit
def _store_part(
    values, scales, unit, slot, keys, tables, SIDE: gl.constexpr, WINDOW_TILES: gl.constexpr,
):  # fmt: skip
    """Decode a part into its buffer: 128 E4M3 or 256 E2M1 values of 64 rows."""
    halves = seen_as(keys, gl.int32, [4, TILE, HALF // 2], TILE_PAIRS)
    if unit < 2 * WINDOW_TILES:
        # All words of scales are equal: one scale per eight words of values.
        place = gl.arange(0, 4, gl.SliceLayout(0, scales.type.layout))
        exact = twice(twice(twice(e8m0_factors(scales, place[None, :]))))
        exponents = gl.convert_layout(exact, VALUES, assert_trivial=True)
        target = halves.index(2 * slot + unit % 2).slice(SIDE * 64, 64, dim=1)
        target.store(decode_window(values, exponents))
    else:
        # A word has four scales, one per two words of values.
        words = twice(twice(scales))
        block = gl.arange(0, 16, gl.SliceLayout(0, words.type.layout)) % 4
        factors = twice(e4m3_factors(words, block[None, :]))
        factors = gl.convert_layout(factors, VALUES, assert_trivial=True)
        half_tile = halves.index(2 * slot + SIDE)
        # In two steps, to save registers.
        upper, lower = rows_of(values)
        upper_factors, lower_factors = rows_of(factors)
        half_tile.slice(0, 32).store(decode_main(upper, upper_factors, tables))
        half_tile.slice(32, 32).store(decode_main(lower, lower_factors, tables))


@gluon.jit
def produce(
    shared, sources, num_items, PIECES: gl.constexpr, PIECE_TILES: gl.constexpr,
    WINDOW_LENGTH: gl.constexpr, MAIN_LENGTH: gl.constexpr,
):  # fmt: skip
    _, keys, _, biases, _, _, barriers = shared
    WINDOW_TILES: gl.constexpr = (WINDOW_LENGTH + TILE - 1) // TILE
    TOTAL_TILES: gl.constexpr = WINDOW_TILES + (MAIN_LENGTH + TILE - 1) // TILE
    tables = main_tables()
    item = gl.program_id(0)
    unit = first_unit(item, PIECES, PIECE_TILES, WINDOW_TILES)
    index = _load_index(
        item, unit, num_items, sources, PIECES, WINDOW_LENGTH, MAIN_LENGTH, WINDOW_TILES
    )
    left, left_scales = _load_part(index, unit, sources, 0, WINDOW_TILES)
    right, right_scales = _load_part(index, unit, sources, 1, WINDOW_TILES)
    next_item, next_unit = unit_after(item, unit, PIECES, PIECE_TILES, WINDOW_TILES, TOTAL_TILES)
    next_index = _load_index(
        next_item, next_unit, num_items, sources, PIECES, WINDOW_LENGTH, MAIN_LENGTH,
        WINDOW_TILES,
    )  # fmt: skip
    slot = 0
    phase = 1
    query_phase = 1
    while item < num_items:
        if unit == first_unit(item, PIECES, PIECE_TILES, WINDOW_TILES):
            fetch_query(shared, sources[0], item // PIECES, query_phase)
            query_phase ^= 1
        third_item, third_unit = unit_after(
            next_item, next_unit, PIECES, PIECE_TILES, WINDOW_TILES, TOTAL_TILES
        )
        third_index = _load_index(
            third_item, third_unit, num_items, sources, PIECES, WINDOW_LENGTH, MAIN_LENGTH,
            WINDOW_TILES,
        )  # fmt: skip
        is_window = unit < 2 * WINDOW_TILES
        half = gl.where(is_window, unit % 2, 0)
        mbarrier.wait(barriers.index(EMPTY + 2 * slot + half), phase)
        if half == 0:
            bias = gl.where(index >= 0, 0.0, float("-inf"))
            biases.index(slot).store(bias.to(gl.bfloat16))
        _store_part(left, left_scales, unit, slot, keys, tables, 0, WINDOW_TILES)
        # Loads of the next rows are issued after each fence, which would wait for them.
        if not is_window:
            fence_async_shared()
            mbarrier.arrive(barriers.index(FULL + 2 * slot), count=1)
        left, left_scales = _load_part(next_index, next_unit, sources, 0, WINDOW_TILES)
        if not is_window:
            half += 1
            mbarrier.wait(barriers.index(EMPTY + 2 * slot + half), phase)
        _store_part(right, right_scales, unit, slot, keys, tables, 1, WINDOW_TILES)
        fence_async_shared()
        mbarrier.arrive(barriers.index(FULL + 2 * slot + half), count=1)
        right, right_scales = _load_part(next_index, next_unit, sources, 1, WINDOW_TILES)
        if half == 1:
            if PIECE_TILES == 1:
                phase ^= 1
            else:
                phase ^= slot
                slot ^= 1
        item, unit, index = next_item, next_unit, next_index
        next_item, next_unit, next_index = third_item, third_unit, third_index
