"""The product for many rows on NVIDIA SM90: a persistent kernel in Gluon, its warps in roles.

One warp fetches tiles of activations and weights; two groups of four warps multiply, two pieces of
64 rows by 128 columns each (one piece where a tile is 128 by 128); for FP4 weights a third group
turns codes into E4M3 before (``gluon_packed.py``), and second pieces without rows of a pair are
left out.  128 inputs at a time are summed by the matrix unit and added in fp32, times the scale of
the row's 128.  The weight's scale is one for each of its rows, so it waits until the end.

Shapes of tiles say the sizes: x_tiles [STAGES, ROWS, 128], w_tiles [STAGES, COLUMNS, 128].
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
)

from deepinfer.kernels.gluon_once import load_tile_once

from .gluon_gated import UNGATED, multiply_gated
from .gluon_packed import decode, fetch_packed
from .gluon_quantize import store_quantized_tile
from .gluon_results import send_piece
from .gluon_ring import (
    barriers,
    fetch_rows,
    first_input,
    jobs_of,
    place_in_band,
    tile_of,
    wait_empty,
    weight_row,
)
from .gluon_sums import (
    factors_ahead,
    has_pair,
    scaled,
    store_piece,
    sum_both_pieces,
    sum_first_piece,
    sum_piece,
    sum_pieces,
)


# Sizes that follow the batch must not make new variants of the kernel.
@gluon.jit(do_not_specialize=["num_row_tiles", "scale_stride", "out_stride", "most_tokens"])
def wide_kernel(
    x, x_scales, w, steps, out, factors, tile_expert, row_pair, used, weights, out_scales,
    homes, num_row_tiles, N, K, scale_stride, out_stride, limit, most_tokens,
    FORMAT: gl.constexpr, STAGES: gl.constexpr, GROUPED: gl.constexpr, BAND: gl.constexpr,
    RUN: gl.constexpr, REGISTERS: gl.constexpr, DECODE_REGISTERS: gl.constexpr,
    GATE: gl.constexpr, CHOICES: gl.constexpr, GROUP_COLUMNS: gl.constexpr, ONCE: gl.constexpr,
):  # fmt: skip
    """Tiles of x [R, K] e4m3 times those of w [E N, K], to out [R, N] bf16, or to pairs of E4M3
    [R, N / 2] i16 with ``out_scales`` [N / 128, out_stride] f32.

    w is e4m3 (FORMAT 1), or [E N, K / 8] i32 of codes with ``steps`` [E N / 64, K / 2] (FORMAT 2).
    GROUPED: ``tile_expert`` gives the expert of each tile of rows, of which there are as many as
    ``used`` [1] rows have; ``row_pair`` [R] is below 0 for rows that only fill a tile.  Programs
    walk over tiles in bands of BAND row tiles that share columns.  Of tiles of 256 rows that are
    left after whole rounds two programs take 128 each, if there are enough.
    GATE, unless it is UNGATED: products of gates and ups leave activated, see ``multiply_gated``.
    CHOICES, unless it is 0: rows go where their tokens came from, see ``home_of``, not to out.
    GROUP_COLUMNS, unless it is 0: each so many columns meet the next K inputs of x [R, G K].  For
    FORMAT 1.
    ONCE: few programs read the same of w, see ``gluon_once.py``.  For FORMAT 1.
    """
    ROWS: gl.constexpr = x.block_shape[0]
    COLUMNS: gl.constexpr = w.block_shape[0]
    x_tiles = gl.allocate_shared_memory(gl.float8e4nv, [STAGES, ROWS, 128], x.layout)
    w_tiles = gl.allocate_shared_memory(gl.float8e4nv, [STAGES, COLUMNS, 128], x.layout)
    s_tiles = gl.allocate_shared_memory(gl.float32, [STAGES, ROWS], x_scales.layout)
    o_tiles = gl.allocate_shared_memory(out.dtype, [2, 64, out.block_shape[1]], out.layout)
    # A stage is full when its copies, and what was decoded, have arrived.
    full, empty = barriers(STAGES, FORMAT, 2)
    if GROUPED:
        num_row_tiles = gl.load(used) // ROWS
    work = (tile_expert, num_row_tiles, N, K)
    tiles = (x_tiles, w_tiles, s_tiles, full, empty)
    sums = (out, factors, o_tiles, row_pair, (row_pair, homes, most_tokens))
    gate = (weights, out_scales, out_stride, limit)
    if FORMAT == 1:
        fence_async_shared()
        gl.warp_specialize(
            [
                (_multiply_first, (work, tiles, sums, gate, GROUPED, BAND, RUN, GATE, CHOICES)),
                (_multiply_second, (work, tiles, sums, gate, GROUPED, BAND, RUN, GATE, CHOICES)),
                (
                    fetch_wide,
                    (x, x_scales, w, work, tiles, scale_stride, GROUPED, BAND, GROUP_COLUMNS, ONCE),
                ),
            ],
            [4, 1],
            [REGISTERS, 24],
        )
    else:
        SLOTS: gl.constexpr = 2
        c_tiles = gl.allocate_shared_memory(gl.int32, [SLOTS, COLUMNS, 32], w.layout)
        d_tiles = gl.allocate_shared_memory(gl.int32, [SLOTS, COLUMNS // 64, 128], steps.layout)
        c_full, c_empty = barriers(SLOTS, 1, 1)
        fence_async_shared()
        packed = (c_tiles, d_tiles, c_full, c_empty)
        source = (x, x_scales, w, steps)
        gl.warp_specialize(
            [
                (_multiply_first, (work, tiles, sums, gate, GROUPED, BAND, RUN, GATE, CHOICES)),
                (_multiply_second, (work, tiles, sums, gate, GROUPED, BAND, RUN, GATE, CHOICES)),
                (decode, (work, tiles, packed)),
                (fetch_packed, (source, work, tiles, packed, scale_stride, GROUPED, BAND)),
            ],
            [4, 4, 1],
            [REGISTERS, DECODE_REGISTERS, 24],
        )


@gluon.jit
def fetch_wide(
    x, x_scales, w, work, tiles, scale_stride, GROUPED: gl.constexpr, BAND: gl.constexpr,
    GROUP_COLUMNS: gl.constexpr, ONCE: gl.constexpr,
):  # fmt: skip
    tile_expert, num_row_tiles, N, K = work
    x_tiles, w_tiles, s_tiles, full, empty = tiles
    STAGES: gl.constexpr = x_tiles.shape[0]
    COLUMNS: gl.constexpr = w_tiles.shape[1]
    num_columns = gl.cdiv(N, COLUMNS)
    step = 0
    for tile in range(gl.program_id(0), num_row_tiles * num_columns, gl.num_programs(0)):
        row_tile, column = place_in_band(tile, num_columns, num_row_tiles, BAND)
        w_row = weight_row(tile_expert, row_tile, column * COLUMNS, N, GROUPED)
        first = first_input(column * COLUMNS, K, GROUP_COLUMNS) // 128
        row = row_tile * x_tiles.shape[1]
        for group in range(K // 128):
            stage = step % STAGES
            bar = full.index(stage)
            wait_empty(empty, step)
            mbarrier.expect(bar, x.block_type.nbytes + w.block_type.nbytes + s_tiles.shape[1] * 4)
            load_tile_once(w, [w_row, group * 128], bar, w_tiles.index(stage), True, ONCE)
            fetch_rows(x, x_scales, tiles, row, first + group, scale_stride, stage)
            step += 1


@gluon.jit
def _multiply_first(
    work, tiles, sums, gate,
    GROUPED: gl.constexpr, BAND: gl.constexpr, RUN: gl.constexpr, GATE: gl.constexpr,
    CHOICES: gl.constexpr,
):  # fmt: skip
    if GATE == UNGATED:
        _multiply(work, tiles, sums, gate, 0, GROUPED, BAND, RUN, CHOICES)
    else:
        multiply_gated(work, tiles, sums, gate, 0, GROUPED, BAND, GATE)


@gluon.jit
def _multiply_second(
    work, tiles, sums, gate,
    GROUPED: gl.constexpr, BAND: gl.constexpr, RUN: gl.constexpr, GATE: gl.constexpr,
    CHOICES: gl.constexpr,
):  # fmt: skip
    if GATE == UNGATED:
        _multiply(work, tiles, sums, gate, 1, GROUPED, BAND, RUN, CHOICES)
    else:
        multiply_gated(work, tiles, sums, gate, 1, GROUPED, BAND, GATE)


@gluon.jit
def _multiply(
    work, tiles, sums, gate, HALF: gl.constexpr,
    GROUPED: gl.constexpr, BAND: gl.constexpr, RUN: gl.constexpr, CHOICES: gl.constexpr,
):  # fmt: skip
    tile_expert, num_row_tiles, N, K = work
    x_tiles, w_tiles, s_tiles, full, empty = tiles
    out, factors, o_tiles, row_pair, home = sums
    ROWS: gl.constexpr = x_tiles.shape[1]
    COLUMNS: gl.constexpr = w_tiles.shape[1]
    FIRST: gl.constexpr = HALF * 64
    SPLIT: gl.constexpr = ROWS == 256
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 32])
    num_columns = gl.cdiv(N, COLUMNS)
    groups = K // 128
    num_tiles = num_row_tiles * num_columns
    buffer = o_tiles.index(HALF)
    step = 0
    for job in range(gl.program_id(0), jobs_of(num_tiles, SPLIT), gl.num_programs(0)):
        tile, is_half, half = tile_of(job, num_tiles, SPLIT)
        row_tile, column = place_in_band(tile, num_columns, num_row_tiles, BAND)
        n = column * COLUMNS
        w_row = weight_row(tile_expert, row_tile, n, N, GROUPED)
        row = row_tile * ROWS + half * 128 + FIRST
        place = factors + w_row + gl.arange(0, 128, gl.SliceLayout(0, layout))
        if ROWS + COLUMNS == 256:
            factor = factors_ahead(factors, w_row)
            total = sum_piece(tiles, step, groups, FIRST, RUN, layout)
            _store(sums, gate, buffer, scaled(total, factor), row, n, N, CHOICES)
        elif COLUMNS == 256:  # shared memory has no room to exchange factors
            left, right = sum_pieces(tiles, step, groups, FIRST, layout)
            factor, next_factor = gl.load(place), gl.load(place + 128)
            _store(sums, gate, buffer, left * factor[None, :], row, n, N, CHOICES)
            _store(sums, gate, buffer, right * next_factor[None, :], row, n + 128, N, CHOICES)
        elif has_pair(row_pair, row_tile * ROWS + FIRST + 128, GROUPED) & ~is_half:
            upper, lower = sum_both_pieces(tiles, step, groups, FIRST, layout)
            factor = gl.load(place)
            _store(sums, gate, buffer, upper * factor[None, :], row, n, N, CHOICES)
            _store(sums, gate, buffer, lower * factor[None, :], row + 128, n, N, CHOICES)
        else:
            total = sum_first_piece(tiles, step, groups, FIRST, layout)
            _store(sums, gate, buffer, total * gl.load(place)[None, :], row, n, N, CHOICES)
        step += groups
    tma.store_wait(0)


@gluon.jit
def _store(sums, gate, buffer, total, row, column, N, CHOICES: gl.constexpr):
    out, factors, o_tiles, row_pair, home = sums
    weights, out_scales, out_stride, limit = gate
    if out.dtype == gl.int16:
        store_quantized_tile(out, buffer, total, row, column, out_scales, out_stride)
    elif CHOICES == 0:
        store_piece(out, buffer, total, row, column)
    else:
        send_piece(home, buffer, total, row, column, N, CHOICES)
