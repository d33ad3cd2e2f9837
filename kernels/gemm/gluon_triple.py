"""GEMM with an E4M3 weight in tiles of 192 rows by 128 columns on NVIDIA SM90, in Gluon.

As ``gluon_wide.py``, with three consumer warpgroups of 64 rows each, for numbers of rows that fill
tiles of 192 better than tiles of 128.  Sub-tiles without rows are skipped.
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

from deepinfer.kernels.gluon_names import load_tile

from .gluon_mainloop import prefetch_scales, scale_columns, store_subtile
from .gluon_pipeline import (
    barriers,
    first_input,
    skip_stages,
    tile_coordinates,
    wait_empty,
    wait_full,
    weight_row,
)
from .gluon_quantize import store_quantized_tile

SUBTILES = gl.constexpr(3)


# Sizes that depend on the batch must not cause recompilation.
@gluon.jit(do_not_specialize=["num_rows", "num_row_tiles", "scale_stride", "out_stride"])
def triple_kernel(
    x, x_scales, w, out, w_scales, tile_expert, row_pair, used, out_scales, num_rows, num_row_tiles,
    N, K, scale_stride, out_stride, STAGES: gl.constexpr, GROUPED: gl.constexpr,
    GROUP_M: gl.constexpr, REGISTERS: gl.constexpr, GROUP_COLUMNS: gl.constexpr,
):  # fmt: skip
    """As ``wide_kernel``; TMA boxes of ``x`` and ``x_scales`` have 64 rows."""
    x_tiles = gl.allocate_shared_memory(gl.float8e4nv, [SUBTILES * STAGES, 64, 128], x.layout)
    w_tiles = gl.allocate_shared_memory(gl.float8e4nv, [STAGES, 128, 128], w.layout)
    s_tiles = gl.allocate_shared_memory(gl.float32, [SUBTILES * STAGES, 64], x_scales.layout)
    o_tiles = gl.allocate_shared_memory(out.dtype, [SUBTILES, 64, out.block_shape[1]], out.layout)
    full, empty = barriers(STAGES, 1, SUBTILES)
    fence_async_shared()
    if GROUPED:
        num_row_tiles = gl.load(used) // (64 * SUBTILES)
    work = (tile_expert, num_row_tiles, N, K)
    tiles = (x_tiles, w_tiles, s_tiles, full, empty)
    epilogue = (out, w_scales, o_tiles, row_pair, num_rows, out_scales, out_stride)
    gl.warp_specialize(
        [
            (_consume_first, (work, tiles, epilogue, GROUPED, GROUP_M)),
            (_consume_second, (work, tiles, epilogue, GROUPED, GROUP_M)),
            (_consume_third, (work, tiles, epilogue, GROUPED, GROUP_M)),
            (
                _produce,
                (x, x_scales, w, work, tiles, scale_stride, GROUPED, GROUP_M, GROUP_COLUMNS),
            ),
        ],
        [4, 4, 1],
        [REGISTERS, REGISTERS, 24],
    )


@gluon.jit
def _produce(
    x, x_scales, w, work, tiles, scale_stride, GROUPED: gl.constexpr, GROUP_M: gl.constexpr,
    GROUP_COLUMNS: gl.constexpr,
):  # fmt: skip
    tile_expert, num_row_tiles, N, K = work
    x_tiles, w_tiles, s_tiles, full, empty = tiles
    ROW_BYTES: gl.constexpr = x.block_type.nbytes + x_scales.block_type.nbytes
    num_columns = gl.cdiv(N, 128)
    step = 0
    for tile in range(gl.program_id(0), num_row_tiles * num_columns, gl.num_programs(0)):
        row_tile, column = tile_coordinates(tile, num_columns, num_row_tiles, GROUP_M)
        w_row = weight_row(tile_expert, row_tile, column * 128, N, GROUPED)
        first = first_input(column * 128, K, GROUP_COLUMNS) // 128
        for group in range(K // 128):
            stage = step % w_tiles.shape[0]
            bar = full.index(stage)
            wait_empty(empty, step)
            mbarrier.expect(bar, w.block_type.nbytes + SUBTILES * ROW_BYTES)
            load_tile(w, [w_row, group * 128], bar, w_tiles.index(stage))
            for subtile in gl.static_range(SUBTILES):
                row = (row_tile * SUBTILES + subtile) * 64
                place = stage * SUBTILES + subtile
                load_tile(x, [row, (first + group) * 128], bar, x_tiles.index(place))
                from_scale = (first + group) * scale_stride + row
                load_tile(x_scales, [from_scale], bar, s_tiles.index(place))
            step += 1


@gluon.jit
def _consume_first(work, tiles, epilogue, GROUPED: gl.constexpr, GROUP_M: gl.constexpr):
    _consume(work, tiles, epilogue, 0, GROUPED, GROUP_M)


@gluon.jit
def _consume_second(work, tiles, epilogue, GROUPED: gl.constexpr, GROUP_M: gl.constexpr):
    _consume(work, tiles, epilogue, 1, GROUPED, GROUP_M)


@gluon.jit
def _consume_third(work, tiles, epilogue, GROUPED: gl.constexpr, GROUP_M: gl.constexpr):
    _consume(work, tiles, epilogue, 2, GROUPED, GROUP_M)


@gluon.jit
def _consume(
    work, tiles, epilogue, SUBTILE: gl.constexpr, GROUPED: gl.constexpr, GROUP_M: gl.constexpr
):  # fmt: skip
    tile_expert, num_row_tiles, N, K = work
    x_tiles, w_tiles, s_tiles, full, empty = tiles
    out, w_scales, o_tiles, row_pair, num_rows, out_scales, out_stride = epilogue
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 32])
    num_columns = gl.cdiv(N, 128)
    groups = K // 128
    step = 0
    for tile in range(gl.program_id(0), num_row_tiles * num_columns, gl.num_programs(0)):
        row_tile, column = tile_coordinates(tile, num_columns, num_row_tiles, GROUP_M)
        w_row = weight_row(tile_expert, row_tile, column * 128, N, GROUPED)
        row = (row_tile * SUBTILES + SUBTILE) * 64
        if _has_rows(row_pair, row, num_rows, GROUPED):
            w_scale = prefetch_scales(w_scales, w_row)
            acc = scale_columns(_mainloop(tiles, step, groups, SUBTILE, layout), w_scale)
            buffer = o_tiles.index(SUBTILE)
            if out.dtype == gl.int16:
                store_quantized_tile(out, buffer, acc, row, column * 128, out_scales, out_stride)
            else:
                store_subtile(out, buffer, acc, row, column * 128)
        else:
            skip_stages(full, empty, step, groups)
        step += groups
    tma.store_wait(0)


@gluon.jit
def _mainloop(tiles, step, groups, SUBTILE: gl.constexpr, layout: gl.constexpr):
    """Main loop of 64 rows by 128 columns; the consumer warpgroups hide each other's latency."""
    x_tiles, w_tiles, s_tiles, full, empty = tiles
    acc = gl.zeros([64, 128], gl.float32, layout)
    zero = gl.zeros([64, 128], gl.float32, layout)
    for _ in range(groups):
        stage = wait_full(full, step)
        place = stage * SUBTILES + SUBTILE
        scales = s_tiles.index(place).load(gl.SliceLayout(1, layout))
        columns = w_tiles.index(stage).permute((1, 0))
        part = warpgroup_mma(x_tiles.index(place), columns, zero, use_acc=False, is_async=True)
        part = warpgroup_mma_wait(0, [part])
        mbarrier.arrive(empty.index(stage), count=1)
        acc += part * scales[:, None]
        step += 1
    return acc


@gluon.jit
def _has_rows(row_pair, row, num_rows, GROUPED: gl.constexpr):
    """Whether any row from ``row`` on is not padding, which comes last in a tile."""
    if GROUPED:
        return gl.load(row_pair + row) >= 0
    else:  # noqa: RET505 - both are compiled otherwise
        return row < num_rows
