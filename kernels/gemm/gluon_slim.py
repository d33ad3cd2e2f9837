"""GEMM with an E4M3 weight in tiles of 128 rows by 80 columns on NVIDIA SM90, in Gluon.

As ``gluon_wide.py``, for layers with few tiles, where tiles of 128 columns would leave a third of
the SMs idle.  A k-step is two MMAs, of 64 and of 16 columns.
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

from .gluon_pipeline import barriers, tile_coordinates, wait_empty

_COLUMNS = gl.constexpr(80)
_LEFT = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 32]))
_RIGHT = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 16, 32]))


# Sizes that depend on the batch must not cause recompilation.
@gluon.jit(do_not_specialize=["num_row_tiles", "scale_stride"])
def slim_kernel(
    x, x_scales, left, right, out_left, out_right, w_scales, num_row_tiles, N, K, scale_stride,
    STAGES: gl.constexpr, GROUP_M: gl.constexpr, UNROLL: gl.constexpr, REGISTERS: gl.constexpr,
    EVICT_FIRST: gl.constexpr,
):  # fmt: skip
    """x [R, K] e4m3 times w [N, K] e4m3; out [R, N] bf16.

    ``left`` and ``right`` are descriptors of w with boxes of 64 and 16 rows, ``out_left`` and
    ``out_right`` of out with as many columns.
    EVICT_FIRST: L2 hint for loads of w, see ``gluon_once.py``.
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
    outs = (out_left, out_right, o_left, o_right, w_scales)
    gl.warp_specialize(
        [
            (_consume_first, (work, tiles, outs, GROUP_M, UNROLL)),
            (_consume_second, (work, tiles, outs, GROUP_M, UNROLL)),
            (_produce, (x, x_scales, left, right, work, tiles, scale_stride, GROUP_M, EVICT_FIRST)),
        ],
        [4, 1],
        [REGISTERS, 24],
    )


@gluon.jit
def _produce(
    x, x_scales, left, right, work, tiles, scale_stride,
    GROUP_M: gl.constexpr, EVICT_FIRST: gl.constexpr,
):  # fmt: skip
    num_row_tiles, N, K = work
    x_tiles, l_tiles, r_tiles, s_tiles, full, empty = tiles
    BYTES: gl.constexpr = x.block_type.nbytes + x_scales.block_type.nbytes + _COLUMNS * 128
    num_columns = gl.cdiv(N, _COLUMNS)
    step = 0
    for tile in range(gl.program_id(0), num_row_tiles * num_columns, gl.num_programs(0)):
        row_tile, column = tile_coordinates(tile, num_columns, num_row_tiles, GROUP_M)
        n = column * _COLUMNS
        row = row_tile * 128
        for group in range(K // 128):
            stage = step % x_tiles.shape[0]
            bar = full.index(stage)
            wait_empty(empty, step)
            mbarrier.expect(bar, BYTES)
            place = [n, group * 128]
            load_tile_once(left, place, bar, l_tiles.index(stage), True, EVICT_FIRST)
            place = [n + 64, group * 128]
            load_tile_once(right, place, bar, r_tiles.index(stage), True, EVICT_FIRST)
            load_tile(x, [row, group * 128], bar, x_tiles.index(stage))
            load_tile(x_scales, [group * scale_stride + row], bar, s_tiles.index(stage))
            step += 1


@gluon.jit
def _consume_first(work, tiles, outs, GROUP_M: gl.constexpr, UNROLL: gl.constexpr):
    _consume(work, tiles, outs, 0, GROUP_M, UNROLL)


@gluon.jit
def _consume_second(work, tiles, outs, GROUP_M: gl.constexpr, UNROLL: gl.constexpr):
    _consume(work, tiles, outs, 1, GROUP_M, UNROLL)


@gluon.jit
def _consume(work, tiles, outs, HALF: gl.constexpr, GROUP_M: gl.constexpr, UNROLL: gl.constexpr):
    num_row_tiles, N, K = work
    out_left, out_right, o_left, o_right, w_scales = outs
    num_columns = gl.cdiv(N, _COLUMNS)
    groups = K // 128
    step = 0
    for tile in range(gl.program_id(0), num_row_tiles * num_columns, gl.num_programs(0)):
        row_tile, column = tile_coordinates(tile, num_columns, num_row_tiles, GROUP_M)
        n = column * _COLUMNS
        # Loaded before the main loop, which hides the latency.
        left_scales = gl.load(w_scales + n + gl.arange(0, 64, gl.SliceLayout(0, _LEFT)))
        right_scales = gl.load(w_scales + n + 64 + gl.arange(0, 16, gl.SliceLayout(0, _RIGHT)))
        left, right = _mainloop(tiles, step, groups, HALF * 64, UNROLL)
        left *= left_scales[None, :]
        right *= right_scales[None, :]
        _store(outs, left, right, row_tile * 128 + HALF * 64, n, HALF)
        step += groups
    tma.store_wait(0)


@gluon.jit
def _mainloop(tiles, step, groups, FIRST: gl.constexpr, UNROLL: gl.constexpr):
    """Main loop, UNROLL k-steps at a time, and the remainder two at a time."""
    left = gl.zeros([64, 64], gl.float32, _LEFT)
    right = gl.zeros([64, 16], gl.float32, _RIGHT)
    for _ in range(groups // UNROLL):
        left, right = _accumulate(tiles, left, right, step, FIRST, UNROLL)
        step += UNROLL
    for _ in range(groups % UNROLL // 2):
        left, right = _accumulate(tiles, left, right, step, FIRST, 2)
        step += 2
    return left, right


@gluon.jit
def _accumulate(tiles, left, right, step, FIRST: gl.constexpr, COUNT: gl.constexpr):
    """COUNT pipelined k-steps: each is promoted while the MMAs of the next one run."""
    x_tiles, l_tiles, r_tiles, s_tiles, full, empty = tiles
    stage, scales, same = _next_stage(tiles, step, FIRST)
    part, rest = _issue_mmas(tiles, stage, FIRST)
    for ahead in gl.static_range(1, COUNT):
        next_stage, next_scales, next_same = _next_stage(tiles, step + ahead, FIRST)
        next_part, next_rest = _issue_mmas(tiles, next_stage, FIRST)
        part, rest = warpgroup_mma_wait(2, [part, rest])
        mbarrier.arrive(empty.index(stage), count=1)
        # Waits for nothing, but keeps the promotion from moving behind the next MMAs.
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
    """Wait for a stage; returns it and its row scales in the layouts of both accumulators."""
    x_tiles, l_tiles, r_tiles, s_tiles, full, empty = tiles
    STAGES: gl.constexpr = x_tiles.shape[0]
    stage = step % STAGES
    mbarrier.wait(full.index(stage), (step // STAGES) & 1)
    rows = s_tiles.index(stage).slice(FIRST, 64)
    return stage, rows.load(gl.SliceLayout(1, _LEFT)), rows.load(gl.SliceLayout(1, _RIGHT))


@gluon.jit
def _issue_mmas(tiles, stage, FIRST: gl.constexpr):
    """Issue the MMAs of 64 rows."""
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
    """Store a [64, 80] accumulator through shared memory by TMA, which clips it to out."""
    out_left, out_right, o_left, o_right, w_scales = outs
    tma.store_wait(0)
    o_left.index(HALF).store(left.to(gl.bfloat16))
    o_right.index(HALF).store(right.to(gl.bfloat16))
    fence_async_shared()
    store_tile(out_left, [row, column], o_left.index(HALF))
    store_tile(out_right, [row, column + 64], o_right.index(HALF))
