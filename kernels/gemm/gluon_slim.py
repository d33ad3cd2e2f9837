"""The product with E4M3 weights in tiles of 128 rows by 80 columns on NVIDIA SM90, in Gluon.

As ``gluon_wide.py``, for layers of few tiles: those of 128 columns would leave a third of the
multiprocessors without work.  A step is two products, of 64 columns and of 16.
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

from deepinfer.kernels.gluon_names import load_tile, store_tile
from deepinfer.kernels.gluon_once import load_tile_once

from .gluon_ring import barriers, place_in_band, wait_empty

_COLUMNS = gl.constexpr(80)
_LEFT = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 32]))
_RIGHT = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 16, 32]))


# Sizes that follow the batch must not make new variants of the kernel.
@gluon.jit(do_not_specialize=["num_row_tiles", "scale_stride"])
def slim_kernel(
    x, x_scales, left, right, out_left, out_right, factors, num_row_tiles, N, K, scale_stride,
    STAGES: gl.constexpr, BAND: gl.constexpr, RUN: gl.constexpr, REGISTERS: gl.constexpr,
    ONCE: gl.constexpr,
):  # fmt: skip
    """x [R, K] e4m3 times w [N, K] e4m3, to out [R, N] bf16.

    ``left`` and ``right`` are boxes of 64 and of 16 rows of w, the outs of as many columns of out.
    ONCE: few programs read the same of w, see ``gluon_once.py``.
    """
    x_tiles = gl.allocate_shared_memory(gl.float8e4nv, [STAGES, 128, 128], x.layout)
    l_tiles = gl.allocate_shared_memory(gl.float8e4nv, [STAGES, 64, 128], left.layout)
    r_tiles = gl.allocate_shared_memory(gl.float8e4nv, [STAGES, 16, 128], right.layout)
    s_tiles = gl.allocate_shared_memory(gl.float32, [STAGES, 128], x_scales.layout)
    o_left = gl.allocate_shared_memory(gl.bfloat16, [2, 64, 64], out_left.layout)
    o_right = gl.allocate_shared_memory(gl.bfloat16, [2, 64, 16], out_right.layout)
    full, empty = barriers(STAGES, 1, 2)
    fence_async_shared()
    work = (num_row_tiles, N, K)
    tiles = (x_tiles, l_tiles, r_tiles, s_tiles, full, empty)
    outs = (out_left, out_right, o_left, o_right, factors)
    gl.warp_specialize(
        [
            (_multiply_first, (work, tiles, outs, BAND, RUN)),
            (_multiply_second, (work, tiles, outs, BAND, RUN)),
            (_fetch, (x, x_scales, left, right, work, tiles, scale_stride, BAND, ONCE)),
        ],
        [4, 1],
        [REGISTERS, 24],
    )


@gluon.jit
def _fetch(
    x, x_scales, left, right, work, tiles, scale_stride, BAND: gl.constexpr, ONCE: gl.constexpr
):  # fmt: skip
    num_row_tiles, N, K = work
    x_tiles, l_tiles, r_tiles, s_tiles, full, empty = tiles
    BYTES: gl.constexpr = x.block_type.nbytes + x_scales.block_type.nbytes + _COLUMNS * 128
    num_columns = gl.cdiv(N, _COLUMNS)
    step = 0
    for tile in range(gl.program_id(0), num_row_tiles * num_columns, gl.num_programs(0)):
        row_tile, column = place_in_band(tile, num_columns, num_row_tiles, BAND)
        n = column * _COLUMNS
        row = row_tile * 128
        for group in range(K // 128):
            stage = step % x_tiles.shape[0]
            bar = full.index(stage)
            wait_empty(empty, step)
            mbarrier.expect(bar, BYTES)
            place = [n, group * 128]
            load_tile_once(left, place, bar, l_tiles.index(stage), True, ONCE)
            place = [n + 64, group * 128]
            load_tile_once(right, place, bar, r_tiles.index(stage), True, ONCE)
            load_tile(x, [row, group * 128], bar, x_tiles.index(stage))
            load_tile(x_scales, [group * scale_stride + row], bar, s_tiles.index(stage))
            step += 1


@gluon.jit
def _multiply_first(work, tiles, outs, BAND: gl.constexpr, RUN: gl.constexpr):
    _multiply(work, tiles, outs, 0, BAND, RUN)


@gluon.jit
def _multiply_second(work, tiles, outs, BAND: gl.constexpr, RUN: gl.constexpr):
    _multiply(work, tiles, outs, 1, BAND, RUN)


@gluon.jit
def _multiply(work, tiles, outs, HALF: gl.constexpr, BAND: gl.constexpr, RUN: gl.constexpr):
    num_row_tiles, N, K = work
    out_left, out_right, o_left, o_right, factors = outs
    num_columns = gl.cdiv(N, _COLUMNS)
    groups = K // 128
    step = 0
    for tile in range(gl.program_id(0), num_row_tiles * num_columns, gl.num_programs(0)):
        row_tile, column = place_in_band(tile, num_columns, num_row_tiles, BAND)
        n = column * _COLUMNS
        # On their way while products are summed.
        left_factors = gl.load(factors + n + gl.arange(0, 64, gl.SliceLayout(0, _LEFT)))
        right_factors = gl.load(factors + n + 64 + gl.arange(0, 16, gl.SliceLayout(0, _RIGHT)))
        left, right = _sum(tiles, step, groups, HALF * 64, RUN)
        left *= left_factors[None, :]
        right *= right_factors[None, :]
        _store(outs, left, right, row_tile * 128 + HALF * 64, n, HALF)
        step += groups
    tma.store_wait(0)


@gluon.jit
def _sum(tiles, step, groups, FIRST: gl.constexpr, RUN: gl.constexpr):
    """RUN steps at a time, and the rest by twos."""
    left = gl.zeros([64, 64], gl.float32, _LEFT)
    right = gl.zeros([64, 16], gl.float32, _RIGHT)
    for _ in range(groups // RUN):
        left, right = _sum_run(tiles, left, right, step, FIRST, RUN)
        step += RUN
    for _ in range(groups % RUN // 2):
        left, right = _sum_run(tiles, left, right, step, FIRST, 2)
        step += 2
    return left, right


@gluon.jit
def _sum_run(tiles, left, right, step, FIRST: gl.constexpr, COUNT: gl.constexpr):
    """Add the products of COUNT steps, each while the next ones run."""
    x_tiles, l_tiles, r_tiles, s_tiles, full, empty = tiles
    stage, scales, same = _next_stage(tiles, step, FIRST)
    part, rest = _products(tiles, stage, FIRST)
    for ahead in gl.static_range(1, COUNT):
        next_stage, next_scales, next_same = _next_stage(tiles, step + ahead, FIRST)
        next_part, next_rest = _products(tiles, next_stage, FIRST)
        part, rest = warpgroup_mma_wait(2, [part, rest])
        mbarrier.arrive(empty.index(stage), count=1)
        # Waits for nothing more, but keeps these sums from moving behind the next products.
        left, right = warpgroup_mma_wait(
            2, [left + part * scales[:, None], right + rest * same[:, None]]
        )
        stage, scales, same = next_stage, next_scales, next_same
        part, rest = next_part, next_rest
    part, rest = warpgroup_mma_wait(0, [part, rest])
    mbarrier.arrive(empty.index(stage), count=1)
    left += part * scales[:, None]
    right += rest * same[:, None]
    return left, right


@gluon.jit
def _next_stage(tiles, step, FIRST: gl.constexpr):
    """Wait for a stage; its scales of the rows, for sums of 64 columns and of 16."""
    x_tiles, l_tiles, r_tiles, s_tiles, full, empty = tiles
    STAGES: gl.constexpr = x_tiles.shape[0]
    stage = step % STAGES
    mbarrier.wait(full.index(stage), (step // STAGES) & 1)
    rows = s_tiles.index(stage).slice(FIRST, 64)
    return stage, rows.load(gl.SliceLayout(1, _LEFT)), rows.load(gl.SliceLayout(1, _RIGHT))


@gluon.jit
def _products(tiles, stage, FIRST: gl.constexpr):
    """Start those of 64 rows."""
    x_tiles, l_tiles, r_tiles, s_tiles, full, empty = tiles
    rows = x_tiles.index(stage).slice(FIRST, 64)
    left = l_tiles.index(stage).permute((1, 0))
    right = r_tiles.index(stage).permute((1, 0))
    part = gl.zeros([64, 64], gl.float32, _LEFT)
    rest = gl.zeros([64, 16], gl.float32, _RIGHT)
    part = warpgroup_mma(rows, left, part, use_acc=False, is_async=True)
    rest = warpgroup_mma(rows, right, rest, use_acc=False, is_async=True)
    return part, rest


@gluon.jit
def _store(outs, left, right, row, column, HALF: gl.constexpr):
    """Write [64, 80] sums by way of shared memory; what lies outside of out is cut off."""
    out_left, out_right, o_left, o_right, factors = outs
    tma.store_wait(0)
    o_left.index(HALF).store(left.to(gl.bfloat16))
    o_right.index(HALF).store(right.to(gl.bfloat16))
    fence_async_shared()
    store_tile(out_left, [row, column], o_left.index(HALF))
    store_tile(out_right, [row, column + 64], o_right.index(HALF))
