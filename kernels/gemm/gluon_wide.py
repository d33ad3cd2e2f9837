"""FP8 and FP4 GEMM for many rows on NVIDIA SM90: a persistent, warp-specialized kernel in Gluon.

A producer warp loads tiles of activations and weights by TMA; two consumer warpgroups compute two
sub-tiles of 64 rows by 128 columns each (one if the tile is 128 by 128).  For FP4 weights a third
warpgroup decodes to E4M3 first (``gluon_packed.py``), and a second sub-tile that has only padding
rows is skipped.  The tensor cores accumulate 128 of K at a time; the result is multiplied by the
activation scale of the row and promoted to an fp32 accumulator.  The weight has one scale per row,
which the epilogue applies.

Tile sizes are those of x_tiles [STAGES, ROWS, 128] and w_tiles [STAGES, COLUMNS, 128].
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

from .gluon_gated import UNGATED, consume_gated
from .gluon_mainloop import (
    has_pair,
    mainloop,
    mainloop_columns,
    mainloop_first_rows,
    mainloop_rows,
    prefetch_scales,
    scale_columns,
    store_subtile,
)
from .gluon_packed import decode, produce_packed
from .gluon_pipeline import (
    barriers,
    first_input,
    load_rows,
    num_work_units,
    skip_stages,
    tile_coordinates,
    tile_of_unit,
    wait_empty,
    weight_row,
)
from .gluon_quantize import store_quantized_tile
from .gluon_results import send_subtile


# Sizes that depend on the batch must not cause recompilation.
@gluon.jit(do_not_specialize=["num_row_tiles", "scale_stride", "out_stride", "most_tokens"])
def wide_kernel(
    x, x_scales, w, exponents, out, w_scales, tile_expert, row_pair, used, weights, out_scales,
    homes, num_row_tiles, N, K, scale_stride, out_stride, limit, most_tokens,
    FORMAT: gl.constexpr, STAGES: gl.constexpr, GROUPED: gl.constexpr, GROUP_M: gl.constexpr,
    UNROLL: gl.constexpr, REGISTERS: gl.constexpr, DECODE_REGISTERS: gl.constexpr,
    GATE: gl.constexpr, TOP_K: gl.constexpr, GROUP_COLUMNS: gl.constexpr, EVICT_FIRST: gl.constexpr,
):  # fmt: skip
    """x [R, K] e4m3 times w [E N, K]; out is [R, N] bf16, or pairs of E4M3 [R, N / 2] i16 with
    ``out_scales`` [N / 128, out_stride] f32.

    w is e4m3 (FORMAT 1), or FP4 in [E N, K / 8] i32 with block ``exponents`` [E N / 64, K / 2]
    (FORMAT 2); w_scales [E N] f32.
    GROUPED: grouped GEMM, ``tile_expert`` [tiles] is the expert of each row tile, ``used`` [1] the
    number of rows in tiles, ``row_pair`` [R] is negative for padding rows.
    GROUP_M: tiles are rasterized in groups of so many row tiles, see ``tile_coordinates``.  Tail
    tiles of 256 rows, and of 128 x 128, are split between two programs each, if there are enough
    programs; of the latter one consumer works on each half, and the other one skips it.
    GATE, unless it is UNGATED: SwiGLU in the epilogue, see ``consume_gated``.
    TOP_K, unless it is 0: results are stored where their tokens came from, see ``home_of``.
    GROUP_COLUMNS, unless it is 0: grouped linear layer, group g of so many columns uses inputs g K
    to (g + 1) K of x [R, G K].  For FORMAT 1.
    EVICT_FIRST: L2 hint for loads of w, see ``gluon_once.py``.  For FORMAT 1.
    """
    ROWS: gl.constexpr = x.block_shape[0]
    COLUMNS: gl.constexpr = w.block_shape[0]
    x_tiles = gl.allocate_shared_memory(gl.float8e4nv, [STAGES, ROWS, 128], x.layout)
    w_tiles = gl.allocate_shared_memory(gl.float8e4nv, [STAGES, COLUMNS, 128], x.layout)
    s_tiles = gl.allocate_shared_memory(gl.float32, [STAGES, ROWS], x_scales.layout)
    o_tiles = gl.allocate_shared_memory(out.dtype, [2, 64, out.block_shape[1]], out.layout)
    # A stage is full when the TMA copies have arrived and, for FP4, the decoder has written w.
    full, empty = barriers(STAGES, FORMAT, 2)
    if GROUPED:
        num_row_tiles = gl.load(used) // ROWS
    work = (tile_expert, num_row_tiles, N, K)
    tiles = (x_tiles, w_tiles, s_tiles, full, empty)
    epilogue = (out, w_scales, o_tiles, row_pair, (row_pair, homes, most_tokens))
    gate = (weights, out_scales, out_stride, limit)
    if FORMAT == 1:
        SPLIT: gl.constexpr = GATE == UNGATED and ROWS + COLUMNS == 256
        fence_async_shared()
        gl.warp_specialize(
            [
                (
                    _consume_first,
                    (work, tiles, epilogue, gate, GROUPED, GROUP_M, UNROLL, GATE, TOP_K),
                ),
                (
                    _consume_second,
                    (work, tiles, epilogue, gate, GROUPED, GROUP_M, UNROLL, GATE, TOP_K),
                ),
                (
                    produce_wide,
                    (
                        x, x_scales, w, work, tiles, scale_stride,
                        GROUPED, GROUP_M, SPLIT, GROUP_COLUMNS, EVICT_FIRST,
                    ),
                ),
            ],
            [4, 1],
            [REGISTERS, 24],
        )  # fmt: skip
    else:
        SLOTS: gl.constexpr = 2
        c_tiles = gl.allocate_shared_memory(gl.int32, [SLOTS, COLUMNS, 32], w.layout)
        d_tiles = gl.allocate_shared_memory(gl.int32, [SLOTS, COLUMNS // 64, 128], exponents.layout)
        c_full, c_empty = barriers(SLOTS, 1, 1)
        fence_async_shared()
        packed = (c_tiles, d_tiles, c_full, c_empty)
        source = (x, x_scales, w, exponents)
        gl.warp_specialize(
            [
                (
                    _consume_first,
                    (work, tiles, epilogue, gate, GROUPED, GROUP_M, UNROLL, GATE, TOP_K),
                ),
                (
                    _consume_second,
                    (work, tiles, epilogue, gate, GROUPED, GROUP_M, UNROLL, GATE, TOP_K),
                ),
                (decode, (work, tiles, packed)),
                (produce_packed, (source, work, tiles, packed, scale_stride, GROUPED, GROUP_M)),
            ],
            [4, 4, 1],
            [REGISTERS, DECODE_REGISTERS, 24],
        )


@gluon.jit
def produce_wide(
    x, x_scales, w, work, tiles, scale_stride, GROUPED: gl.constexpr, GROUP_M: gl.constexpr,
    SPLIT: gl.constexpr, GROUP_COLUMNS: gl.constexpr, EVICT_FIRST: gl.constexpr,
):  # fmt: skip
    tile_expert, num_row_tiles, N, K = work
    x_tiles, w_tiles, s_tiles, full, empty = tiles
    STAGES: gl.constexpr = x_tiles.shape[0]
    COLUMNS: gl.constexpr = w_tiles.shape[1]
    num_columns = gl.cdiv(N, COLUMNS)
    num_tiles = num_row_tiles * num_columns
    step = 0
    for unit in range(gl.program_id(0), num_work_units(num_tiles, SPLIT), gl.num_programs(0)):
        tile, _, _ = tile_of_unit(unit, num_tiles, SPLIT)
        row_tile, column = tile_coordinates(tile, num_columns, num_row_tiles, GROUP_M)
        w_row = weight_row(tile_expert, row_tile, column * COLUMNS, N, GROUPED)
        first = first_input(column * COLUMNS, K, GROUP_COLUMNS) // 128
        row = row_tile * x_tiles.shape[1]
        for group in range(K // 128):
            stage = step % STAGES
            bar = full.index(stage)
            wait_empty(empty, step)
            mbarrier.expect(bar, x.block_type.nbytes + w.block_type.nbytes + s_tiles.shape[1] * 4)
            load_tile_once(w, [w_row, group * 128], bar, w_tiles.index(stage), True, EVICT_FIRST)
            load_rows(x, x_scales, tiles, row, first + group, scale_stride, stage)
            step += 1


@gluon.jit
def _consume_first(
    work, tiles, epilogue, gate,
    GROUPED: gl.constexpr, GROUP_M: gl.constexpr, UNROLL: gl.constexpr, GATE: gl.constexpr,
    TOP_K: gl.constexpr,
):  # fmt: skip
    if GATE == UNGATED:
        _consume(work, tiles, epilogue, gate, 0, GROUPED, GROUP_M, UNROLL, TOP_K)
    else:
        consume_gated(work, tiles, epilogue, gate, 0, GROUPED, GROUP_M, GATE)


@gluon.jit
def _consume_second(
    work, tiles, epilogue, gate,
    GROUPED: gl.constexpr, GROUP_M: gl.constexpr, UNROLL: gl.constexpr, GATE: gl.constexpr,
    TOP_K: gl.constexpr,
):  # fmt: skip
    if GATE == UNGATED:
        _consume(work, tiles, epilogue, gate, 1, GROUPED, GROUP_M, UNROLL, TOP_K)
    else:
        consume_gated(work, tiles, epilogue, gate, 1, GROUPED, GROUP_M, GATE)


@gluon.jit
def _consume(
    work, tiles, epilogue, gate, HALF: gl.constexpr,
    GROUPED: gl.constexpr, GROUP_M: gl.constexpr, UNROLL: gl.constexpr, TOP_K: gl.constexpr,
):  # fmt: skip
    tile_expert, num_row_tiles, N, K = work
    x_tiles, w_tiles, s_tiles, full, empty = tiles
    out, w_scales, o_tiles, row_pair, home = epilogue
    ROWS: gl.constexpr = x_tiles.shape[1]
    COLUMNS: gl.constexpr = w_tiles.shape[1]
    FIRST: gl.constexpr = HALF * 64
    SQUARE: gl.constexpr = ROWS + COLUMNS == 256
    SPLIT: gl.constexpr = SQUARE or ROWS == 256
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 32])
    num_columns = gl.cdiv(N, COLUMNS)
    groups = K // 128
    num_tiles = num_row_tiles * num_columns
    buffer = o_tiles.index(HALF)
    step = 0
    for unit in range(gl.program_id(0), num_work_units(num_tiles, SPLIT), gl.num_programs(0)):
        tile, is_half, half = tile_of_unit(unit, num_tiles, SPLIT)
        row_tile, column = tile_coordinates(tile, num_columns, num_row_tiles, GROUP_M)
        n = column * COLUMNS
        w_row = weight_row(tile_expert, row_tile, n, N, GROUPED)
        row = row_tile * ROWS + (0 if SQUARE else half * 128) + FIRST
        place = w_scales + w_row + gl.arange(0, 128, gl.SliceLayout(0, layout))
        if SQUARE:
            if is_half & (half != HALF):
                skip_stages(full, empty, step, groups)
            else:
                w_scale = prefetch_scales(w_scales, w_row)
                acc = mainloop(tiles, step, groups, FIRST, UNROLL, layout)
                _store(epilogue, gate, buffer, scale_columns(acc, w_scale), row, n, N, TOP_K)
        elif COLUMNS == 256:  # shared memory has no room to change the layout of scales
            left, right = mainloop_columns(tiles, step, groups, FIRST, layout)
            w_scale, next_w_scale = gl.load(place), gl.load(place + 128)
            _store(epilogue, gate, buffer, left * w_scale[None, :], row, n, N, TOP_K)
            _store(epilogue, gate, buffer, right * next_w_scale[None, :], row, n + 128, N, TOP_K)
        elif has_pair(row_pair, row_tile * ROWS + FIRST + 128, GROUPED) & ~is_half:
            upper, lower = mainloop_rows(tiles, step, groups, FIRST, layout)
            w_scale = gl.load(place)
            _store(epilogue, gate, buffer, upper * w_scale[None, :], row, n, N, TOP_K)
            _store(epilogue, gate, buffer, lower * w_scale[None, :], row + 128, n, N, TOP_K)
        else:
            acc = mainloop_first_rows(tiles, step, groups, FIRST, layout)
            _store(epilogue, gate, buffer, acc * gl.load(place)[None, :], row, n, N, TOP_K)
        step += groups
    tma.store_wait(0)


@gluon.jit
def _store(epilogue, gate, buffer, acc, row, column, N, TOP_K: gl.constexpr):
    out, w_scales, o_tiles, row_pair, home = epilogue
    weights, out_scales, out_stride, limit = gate
    if out.dtype == gl.int16:
        store_quantized_tile(out, buffer, acc, row, column, out_scales, out_stride)
    elif TOP_K == 0:
        store_subtile(out, buffer, acc, row, column)
    else:
        send_subtile(home, buffer, acc, row, column, N, TOP_K)
