"""Main loops over K of a consumer warpgroup in ``gluon_wide.py``.

A sub-tile is 64 rows by 128 columns of the output.  MMAs over 128 of K start from zero; their
result is scaled per row and promoted to an fp32 accumulator.  ``tiles`` is the pipeline: x_tiles
[STAGES, ROWS, 128], w_tiles [STAGES, COLUMNS, 128], s_tiles [STAGES, ROWS] scales of the rows, and
full and empty barriers.
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

from deepinfer.kernels.gluon_names import store_tile

from .gluon_pipeline import wait_full


@gluon.jit
def mainloop_columns(tiles, step, groups, FIRST: gl.constexpr, layout: gl.constexpr):
    """Two sub-tiles side by side; the two consumer warpgroups hide each other's latency.

    The wait for the next stage overlaps the last MMA of the current one.  ``warpgroup_mma_wait`` of
    an accumulator waits for nothing, but keeps the compiler from moving its promotion behind the
    next MMA.
    """
    x_tiles, w_tiles, s_tiles, full, empty = tiles
    left = gl.zeros([64, 128], gl.float32, layout)
    right = gl.zeros([64, 128], gl.float32, layout)
    zero = gl.zeros([64, 128], gl.float32, layout)
    last = step + groups - 1
    stage = wait_full(full, step)
    scales = _scales(tiles, stage, FIRST, layout)
    for _ in range(groups):
        step = gl.minimum(step + 1, last)
        part = warpgroup_mma_wait(0, [_issue_mma(tiles, stage, FIRST, 0, zero, False)])
        left = warpgroup_mma_wait(0, [left + part * scales[:, None]])
        begun = _issue_mma(tiles, stage, FIRST, 128, zero, False)
        next_stage = wait_full(full, step)
        next_scales = _scales(tiles, next_stage, FIRST, layout)
        part = warpgroup_mma_wait(0, [begun])
        mbarrier.arrive(empty.index(stage), count=1)
        right = warpgroup_mma_wait(0, [right + part * scales[:, None]])
        stage = next_stage
        scales = next_scales
    return left, right


@gluon.jit
def mainloop_rows(tiles, step, groups, FIRST: gl.constexpr, layout: gl.constexpr):
    """Two sub-tiles, one 128 rows below the other.

    Waiting for the next stage early, as ``mainloop_columns`` does, would keep the current stage
    from the decoder warpgroup.  Stage and phase are counted instead of computed by division, which
    takes longer.
    """
    x_tiles, w_tiles, s_tiles, full, empty = tiles
    STAGES: gl.constexpr = x_tiles.shape[0]
    SECOND: gl.constexpr = FIRST + 128
    first = gl.zeros([64, 128], gl.float32, layout)
    second = gl.zeros([64, 128], gl.float32, layout)
    zero = gl.zeros([64, 128], gl.float32, layout)
    stage = step % STAGES
    phase = (step // STAGES) & 1
    for _ in range(groups):
        mbarrier.wait(full.index(stage), phase)
        scales = _scales(tiles, stage, FIRST, layout)
        part = warpgroup_mma_wait(0, [_issue_mma(tiles, stage, FIRST, 0, zero, False)])
        first += part * scales[:, None]
        scales = _scales(tiles, stage, SECOND, layout)
        part = warpgroup_mma_wait(0, [_issue_mma(tiles, stage, SECOND, 0, zero, False)])
        mbarrier.arrive(empty.index(stage), count=1)
        second += part * scales[:, None]
        is_last = stage == STAGES - 1
        stage = gl.where(is_last, 0, stage + 1)
        phase = gl.where(is_last, phase ^ 1, phase)
    return first, second


@gluon.jit
def mainloop_first_rows(tiles, step, groups, FIRST: gl.constexpr, layout: gl.constexpr):
    """Only the upper of the two sub-tiles of ``mainloop_rows``."""
    x_tiles, w_tiles, s_tiles, full, empty = tiles
    first = gl.zeros([64, 128], gl.float32, layout)
    zero = gl.zeros([64, 128], gl.float32, layout)
    for _ in range(groups):
        stage = wait_full(full, step)
        scales = _scales(tiles, stage, FIRST, layout)
        part = warpgroup_mma_wait(0, [_issue_mma(tiles, stage, FIRST, 0, zero, False)])
        mbarrier.arrive(empty.index(stage), count=1)
        first += part * scales[:, None]
        step += 1
    return first


@gluon.jit
def mainloop(tiles, step, groups, FIRST: gl.constexpr, UNROLL: gl.constexpr, layout: gl.constexpr):
    """One sub-tile, UNROLL k-steps at a time, and the remainder two at a time."""
    acc = gl.zeros([64, 128], gl.float32, layout)
    for _ in range(groups // UNROLL):
        acc = _accumulate(tiles, acc, step, FIRST, UNROLL, layout)
        step += UNROLL
    for _ in range(groups % UNROLL // 2):
        acc = _accumulate(tiles, acc, step, FIRST, 2, layout)
        step += 2
    return acc


@gluon.jit
def _accumulate(tiles, acc, step, FIRST: gl.constexpr, COUNT: gl.constexpr, layout: gl.constexpr):
    """COUNT pipelined k-steps: each is promoted while the MMA of the next one runs."""
    x_tiles, w_tiles, s_tiles, full, empty = tiles
    stage = wait_full(full, step)
    scales = _scales(tiles, stage, FIRST, layout)
    done = gl.zeros([64, 128], gl.float32, layout)
    part = _issue_mma(tiles, stage, FIRST, 0, done, False)
    for ahead in gl.static_range(1, COUNT):
        next_stage = wait_full(full, step + ahead)
        next_scales = _scales(tiles, next_stage, FIRST, layout)
        # use_acc is never true, so nothing is added.  The compiler does not know that, and
        # therefore reuses the registers of the result before the last.
        next_part = _issue_mma(tiles, next_stage, FIRST, 0, done, step < 0)
        done = warpgroup_mma_wait(1, [part])
        mbarrier.arrive(empty.index(stage), count=1)
        # Waits for nothing, but keeps the promotion from moving behind the next MMA.
        acc = warpgroup_mma_wait(1, [acc + done * scales[:, None]])
        stage = next_stage
        scales = next_scales
        part = next_part
    done = warpgroup_mma_wait(0, [part])
    mbarrier.arrive(empty.index(stage), count=1)
    acc += done * scales[:, None]
    return acc


@gluon.jit
def _scales(tiles, stage, ROW: gl.constexpr, layout: gl.constexpr):
    x_tiles, w_tiles, s_tiles, full, empty = tiles
    return s_tiles.index(stage).slice(ROW, 64).load(gl.SliceLayout(1, layout))


@gluon.jit
def _issue_mma(tiles, stage, ROW: gl.constexpr, COLUMN: gl.constexpr, registers, is_added):
    """Issue the MMAs of 64 rows by 128 columns of a stage, added to ``registers`` if
    ``is_added``."""
    x_tiles, w_tiles, s_tiles, full, empty = tiles
    rows = x_tiles.index(stage).slice(ROW, 64)
    columns = w_tiles.index(stage).slice(COLUMN, 128).permute((1, 0))
    return warpgroup_mma(rows, columns, registers, use_acc=is_added, is_async=True)


@gluon.jit
def has_pair(row_pair, row, GROUPED: gl.constexpr):
    """Whether any row from ``row`` on is not padding, which comes last in a tile."""
    if GROUPED:
        return gl.load(row_pair + row) >= 0
    else:  # noqa: RET505 - both are compiled otherwise
        return row >= 0


@gluon.jit
def prefetch_scales(w_scales, row):
    """Load the scales of 128 columns before the main loop hides the latency, one per thread."""
    return gl.load(w_scales + row + gl.arange(0, 128, gl.BlockedLayout([1], [32], [4], [0])))


@gluon.jit
def scale_columns(acc, w_scales):
    """A [64, 128] accumulator times the scales of its columns."""
    layout: gl.constexpr = gl.SliceLayout(0, acc.type.layout)
    return acc * gl.convert_layout(w_scales, layout)[None, :]


@gluon.jit
def store_subtile(out, buffer, acc, row, column):
    """Store a [64, 128] accumulator through shared memory by TMA, which clips it to ``out``."""
    tma.store_wait(0)
    buffer.store(acc.to(gl.bfloat16))
    fence_async_shared()
    store_tile(out, [row, column], buffer)
