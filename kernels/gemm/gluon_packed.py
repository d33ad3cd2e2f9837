"""Groups of warps in ``gluon_wide.py`` for FP4 weights: one warp that fetches, four that turn codes
into E4M3.

Codes come 256 inputs at a time, two stages of the ring: threads read such rows of 128 bytes without
conflicts of banks, which rows of 64 bytes would have.

``packed`` is a ring of its own: codes [SLOTS, COLUMNS, 32] i32, steps [SLOTS, COLUMNS / 64, 128]
i32, full and empty barriers.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from deepinfer.kernels.gluon_names import load_tile

from .gluon_decode import code_layout, decoded_operand, in_memory_order, in_thread_order
from .gluon_ring import fetch_rows, jobs_of, place_in_band, tile_of, wait_empty, weight_row


@gluon.jit
def fetch_packed(
    source, work, tiles, packed, scale_stride, GROUPED: gl.constexpr, BAND: gl.constexpr
):
    x, x_scales, w, steps = source
    tile_expert, num_row_tiles, N, K = work
    x_tiles, w_tiles, s_tiles, full, empty = tiles
    c_tiles, d_tiles, c_full, c_empty = packed
    STAGES: gl.constexpr = x_tiles.shape[0]
    COLUMNS: gl.constexpr = w_tiles.shape[1]
    num_columns = gl.cdiv(N, COLUMNS)
    num_tiles = num_row_tiles * num_columns
    pair = 0
    for job in range(gl.program_id(0), jobs_of(num_tiles, True), gl.num_programs(0)):
        tile, is_half, half = tile_of(job, num_tiles, True)
        row_tile, column = place_in_band(tile, num_columns, num_row_tiles, BAND)
        w_row = weight_row(tile_expert, row_tile, column * COLUMNS, N, GROUPED)
        row = row_tile * x_tiles.shape[1] + half * 128
        for part in range(K // 256):
            slot = pair % c_tiles.shape[0]
            bar = c_full.index(slot)
            wait_empty(c_empty, pair)
            mbarrier.expect(bar, w.block_type.nbytes + steps.block_type.nbytes)
            load_tile(w, [w_row, part * 32], bar, c_tiles.index(slot))
            load_tile(steps, [w_row // 64, part * 128], bar, d_tiles.index(slot))
            for turn in gl.static_range(2):
                step = 2 * pair + turn
                stage = step % STAGES
                wait_empty(empty, step)
                mbarrier.expect(full.index(stage), x.block_type.nbytes + s_tiles.shape[1] * 4)
                fetch_rows(x, x_scales, tiles, row, 2 * part + turn, scale_stride, stage)
            pair += 1


@gluon.jit
def decode(work, tiles, packed):
    tile_expert, num_row_tiles, N, K = work
    x_tiles, w_tiles, s_tiles, full, empty = tiles
    c_tiles, d_tiles, c_full, c_empty = packed
    SLOTS: gl.constexpr = c_tiles.shape[0]
    COLUMNS: gl.constexpr = w_tiles.shape[1]
    step_layout: gl.constexpr = gl.BlockedLayout([COLUMNS // 64, 1], [1, 32], [1, 4], [1, 0])
    num_columns = gl.cdiv(N, COLUMNS)
    pair = 0
    jobs = jobs_of(num_row_tiles * num_columns, True)
    for _ in range(gl.program_id(0), jobs, gl.num_programs(0)):
        for _part in range(K // 256):
            slot = pair % SLOTS
            mbarrier.wait(c_full.index(slot), (pair // SLOTS) & 1)
            steps = d_tiles.index(slot).load(step_layout).reshape([COLUMNS * 2])
            first = c_tiles.index(slot).slice(0, 16, 1).load(code_layout(COLUMNS))
            last = c_tiles.index(slot).slice(16, 16, 1).load(code_layout(COLUMNS))
            mbarrier.arrive(c_empty.index(slot), count=1)
            _decode_stage(tiles, first, steps, 2 * pair)
            _decode_stage(tiles, last, steps >> 16, 2 * pair + 1)
            pair += 1


@gluon.jit
def _decode_stage(tiles, codes, steps, step):
    x_tiles, w_tiles, s_tiles, full, empty = tiles
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 32])
    stage = step % w_tiles.shape[0]
    values = decoded_operand(in_thread_order(codes), steps, layout)
    wait_empty(empty, step)
    w_tiles.index(stage).store(in_memory_order(values))
    fence_async_shared()
    mbarrier.arrive(full.index(stage), count=1)
