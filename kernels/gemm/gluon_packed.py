"""Producer warp and decoder warpgroup of ``gluon_wide.py`` for FP4 weights: the latter decodes FP4
to E4M3.

FP4 tiles are loaded 256 along K at a time, which is two stages of the main pipeline: rows of 128
bytes are read from shared memory without bank conflicts, rows of 64 bytes would not be.

``packed`` is a second pipeline: c_tiles [SLOTS, COLUMNS, 32] i32 of FP4 values, d_tiles
[SLOTS, COLUMNS / 64, 128] i32 of block exponents, full and empty barriers.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from deepinfer.kernels.gluon_names import load_tile

from .gluon_decode import code_layout, decoded_operand, in_memory_order, in_thread_order
from .gluon_pipeline import (
    load_rows,
    num_work_units,
    tile_coordinates,
    tile_of_unit,
    wait_empty,
    weight_row,
)


@gluon.jit
def produce_packed(
    source, work, tiles, packed, scale_stride, GROUPED: gl.constexpr, GROUP_M: gl.constexpr
):
    x, x_scales, w, exponents = source
    tile_expert, num_row_tiles, N, K = work
    x_tiles, w_tiles, s_tiles, full, empty = tiles
    c_tiles, d_tiles, c_full, c_empty = packed
    STAGES: gl.constexpr = x_tiles.shape[0]
    COLUMNS: gl.constexpr = w_tiles.shape[1]
    num_columns = gl.cdiv(N, COLUMNS)
    num_tiles = num_row_tiles * num_columns
    pair = 0
    for unit in range(gl.program_id(0), num_work_units(num_tiles, True), gl.num_programs(0)):
        tile, is_half, half = tile_of_unit(unit, num_tiles, True)
        row_tile, column = tile_coordinates(tile, num_columns, num_row_tiles, GROUP_M)
        w_row = weight_row(tile_expert, row_tile, column * COLUMNS, N, GROUPED)
        row = row_tile * x_tiles.shape[1] + half * 128
        for part in range(K // 256):
            slot = pair % c_tiles.shape[0]
            bar = c_full.index(slot)
            wait_empty(c_empty, pair)
            mbarrier.expect(bar, w.block_type.nbytes + exponents.block_type.nbytes)
            load_tile(w, [w_row, part * 32], bar, c_tiles.index(slot))
            load_tile(exponents, [w_row // 64, part * 128], bar, d_tiles.index(slot))
            for half_step in gl.static_range(2):
                step = 2 * pair + half_step
                stage = step % STAGES
                wait_empty(empty, step)
                mbarrier.expect(full.index(stage), x.block_type.nbytes + s_tiles.shape[1] * 4)
                load_rows(x, x_scales, tiles, row, 2 * part + half_step, scale_stride, stage)
            pair += 1


@gluon.jit
def decode(work, tiles, packed):
    tile_expert, num_row_tiles, N, K = work
    x_tiles, w_tiles, s_tiles, full, empty = tiles
    c_tiles, d_tiles, c_full, c_empty = packed
    SLOTS: gl.constexpr = c_tiles.shape[0]
    COLUMNS: gl.constexpr = w_tiles.shape[1]
    exponent_layout: gl.constexpr = gl.BlockedLayout([COLUMNS // 64, 1], [1, 32], [1, 4], [1, 0])
    num_columns = gl.cdiv(N, COLUMNS)
    pair = 0
    units = num_work_units(num_row_tiles * num_columns, True)
    for _ in range(gl.program_id(0), units, gl.num_programs(0)):
        for _part in range(K // 256):
            slot = pair % SLOTS
            mbarrier.wait(c_full.index(slot), (pair // SLOTS) & 1)
            exponents = d_tiles.index(slot).load(exponent_layout).reshape([COLUMNS * 2])
            first = c_tiles.index(slot).slice(0, 16, 1).load(code_layout(COLUMNS))
            last = c_tiles.index(slot).slice(16, 16, 1).load(code_layout(COLUMNS))
            mbarrier.arrive(c_empty.index(slot), count=1)
            _decode_stage(tiles, first, exponents, 2 * pair)
            _decode_stage(tiles, last, exponents >> 16, 2 * pair + 1)
            pair += 1


@gluon.jit
def _decode_stage(tiles, codes, exponents, step):
    x_tiles, w_tiles, s_tiles, full, empty = tiles
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 32])
    stage = step % w_tiles.shape[0]
    values = decoded_operand(in_thread_order(codes), exponents, layout)
    wait_empty(empty, step)
    w_tiles.index(stage).store(in_memory_order(values))
    fence_async_shared()
    mbarrier.arrive(full.index(stage), count=1)
