"""The product with E4M3 weights in tiles of 192 rows by 128 columns on NVIDIA SM90, in Gluon.

As ``gluon_wide.py``, with three groups of warps that multiply 64 rows each.  It is for numbers of
rows that leave less of 192 empty than of 128: pieces without rows are left out.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from deepinfer.kernels.gluon_names import load_tile, thread_barrier

from .gluon_quantize import store_quantized_tile
from .gluon_ring import barriers, first_input, place_in_band, wait_empty, weight_row
from .gluon_sums import factors_ahead, scaled, store_piece

PIECES = gl.constexpr(3)


# Sizes that follow the batch must not make new variants of the kernel.
@gluon.jit(do_not_specialize=["num_rows", "num_row_tiles", "scale_stride", "out_stride"])
def triple_kernel(
    x, x_scales, w, out, factors, tile_expert, row_pair, used, out_scales, num_rows, num_row_tiles,
    N, K, scale_stride, out_stride, STAGES: gl.constexpr, GROUPED: gl.constexpr,
    BAND: gl.constexpr, REGISTERS: gl.constexpr, GROUP_COLUMNS: gl.constexpr,
):  # fmt: skip
    """As ``wide_kernel``; boxes of ``x`` and ``x_scales`` are 64 rows."""
    x_tiles = gl.allocate_shared_memory(gl.float8e4nv, [PIECES * STAGES, 64, 128], x.layout)
    w_tiles = gl.allocate_shared_memory(gl.float8e4nv, [STAGES, 128, 128], w.layout)
    s_tiles = gl.allocate_shared_memory(gl.float32, [PIECES * STAGES, 64], x_scales.layout)
    o_tiles = gl.allocate_shared_memory(out.dtype, [PIECES, 64, out.block_shape[1]], out.layout)
    full, empty = barriers(STAGES, 1, PIECES)
    fence_async_shared()
    if GROUPED:
        num_row_tiles = gl.load(used) // (64 * PIECES)
    work = (tile_expert, num_row_tiles, N, K)
    tiles = (x_tiles, w_tiles, s_tiles, full, empty)
    sums = (out, factors, o_tiles, row_pair, num_rows, out_scales, out_stride)
    gl.warp_specialize(
        [
            (_multiply_first, (work, tiles, sums, GROUPED, BAND)),
            (_multiply_second, (work, tiles, sums, GROUPED, BAND)),
            (_multiply_third, (work, tiles, sums, GROUPED, BAND)),
            (_fetch, (x, x_scales, w, work, tiles, scale_stride, GROUPED, BAND, GROUP_COLUMNS)),
        ],
        [4, 4, 1],
        [REGISTERS, REGISTERS, 24],
    )


@gluon.jit
def _fetch(
    x, x_scales, w, work, tiles, scale_stride, GROUPED: gl.constexpr, BAND: gl.constexpr,
    GROUP_COLUMNS: gl.constexpr,
):  # fmt: skip
    tile_expert, num_row_tiles, N, K = work
    x_tiles, w_tiles, s_tiles, full, empty = tiles
    ROW_BYTES: gl.constexpr = x.block_type.nbytes + x_scales.block_type.nbytes
    num_columns = gl.cdiv(N, 128)
    step = 0
    for tile in range(gl.program_id(0), num_row_tiles * num_columns, gl.num_programs(0)):
        row_tile, column = place_in_band(tile, num_columns, num_row_tiles, BAND)
        w_row = weight_row(tile_expert, row_tile, column * 128, N, GROUPED)
        first = first_input(column * 128, K, GROUP_COLUMNS) // 128
        for group in range(K // 128):
            stage = step % w_tiles.shape[0]
            bar = full.index(stage)
            wait_empty(empty, step)
            mbarrier.expect(bar, w.block_type.nbytes + PIECES * ROW_BYTES)
            load_tile(w, [w_row, group * 128], bar, w_tiles.index(stage))
            for piece in gl.static_range(PIECES):
                row = (row_tile * PIECES + piece) * 64
                place = stage * PIECES + piece
                load_tile(x, [row, (first + group) * 128], bar, x_tiles.index(place))
                from_scale = (first + group) * scale_stride + row
                load_tile(x_scales, [from_scale], bar, s_tiles.index(place))
            step += 1


@gluon.jit
def _multiply_first(work, tiles, sums, GROUPED: gl.constexpr, BAND: gl.constexpr):
    _multiply(work, tiles, sums, 0, GROUPED, BAND)


@gluon.jit
def _multiply_second(work, tiles, sums, GROUPED: gl.constexpr, BAND: gl.constexpr):
    _multiply(work, tiles, sums, 1, GROUPED, BAND)


@gluon.jit
def _multiply_third(work, tiles, sums, GROUPED: gl.constexpr, BAND: gl.constexpr):
    _multiply(work, tiles, sums, 2, GROUPED, BAND)


@gluon.jit
def _multiply(
    work, tiles, sums, PIECE: gl.constexpr, GROUPED: gl.constexpr, BAND: gl.constexpr
):  # fmt: skip
    tile_expert, num_row_tiles, N, K = work
    x_tiles, w_tiles, s_tiles, full, empty = tiles
    out, factors, o_tiles, row_pair, num_rows, out_scales, out_stride = sums
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 32])
    num_columns = gl.cdiv(N, 128)
    groups = K // 128
    step = 0
    for tile in range(gl.program_id(0), num_row_tiles * num_columns, gl.num_programs(0)):
        row_tile, column = place_in_band(tile, num_columns, num_row_tiles, BAND)
        w_row = weight_row(tile_expert, row_tile, column * 128, N, GROUPED)
        row = (row_tile * PIECES + PIECE) * 64
        if _has_rows(row_pair, row, num_rows, GROUPED):
            factor = factors_ahead(factors, w_row)
            total = scaled(_sum(tiles, step, groups, PIECE, layout), factor)
            buffer = o_tiles.index(PIECE)
            if out.dtype == gl.int16:
                store_quantized_tile(out, buffer, total, row, column * 128, out_scales, out_stride)
            else:
                store_piece(out, buffer, total, row, column * 128)
        else:
            _pass_by(tiles, step, groups)
        step += groups
    tma.store_wait(0)


@gluon.jit
def _sum(tiles, step, groups, PIECE: gl.constexpr, layout: gl.constexpr):
    """64 rows by 128 columns over all of K; groups of warps fill each other's waits."""
    x_tiles, w_tiles, s_tiles, full, empty = tiles
    total = gl.zeros([64, 128], gl.float32, layout)
    zero = gl.zeros([64, 128], gl.float32, layout)
    for _ in range(groups):
        stage = _wait_full(tiles, step)
        place = stage * PIECES + PIECE
        scales = s_tiles.index(place).load(gl.SliceLayout(1, layout))
        columns = w_tiles.index(stage).permute((1, 0))
        part = warpgroup_mma(x_tiles.index(place), columns, zero, use_acc=False, is_async=True)
        part = warpgroup_mma_wait(0, [part])
        mbarrier.arrive(empty.index(stage), count=1)
        total += part * scales[:, None]
        step += 1
    return total


@gluon.jit
def _pass_by(tiles, step, groups):
    x_tiles, w_tiles, s_tiles, full, empty = tiles
    for _ in range(groups):
        stage = _wait_full(tiles, step)
        # One thread arrives for all: a warp that has not seen this phase yet would miss it once
        # the stage is filled again, and wait for ever.  Products keep a group's warps together.
        thread_barrier()
        mbarrier.arrive(empty.index(stage), count=1)
        step += 1


@gluon.jit
def _wait_full(tiles, step):
    x_tiles, w_tiles, s_tiles, full, empty = tiles
    STAGES: gl.constexpr = w_tiles.shape[0]
    stage = step % STAGES
    mbarrier.wait(full.index(stage), (step // STAGES) & 1)
    return stage


@gluon.jit
def _has_rows(row_pair, row, num_rows, GROUPED: gl.constexpr):
    """Rows of no pair come last in a tile."""
    if GROUPED:
        return gl.load(row_pair + row) >= 0
    else:  # noqa: RET505 - both are compiled otherwise
        return row < num_rows
