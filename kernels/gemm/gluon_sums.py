"""Device functions of a group of four warps that multiplies in ``gluon_wide.py``.

A piece is 64 rows by 128 columns of the result.  ``tiles`` is a ring: x_tiles [STAGES, ROWS, 128],
w_tiles [STAGES, COLUMNS, 128], s_tiles [STAGES, ROWS] scales of the rows, full and empty barriers.
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


@gluon.jit
def sum_pieces(tiles, step, groups, FIRST: gl.constexpr, layout: gl.constexpr):
    """Two pieces side by side; groups of warps fill each other's waits.

    A stage is waited for while the product before runs.  Waits for products that have nothing to
    wait for keep sums from moving behind the next product.
    """
    x_tiles, w_tiles, s_tiles, full, empty = tiles
    left = gl.zeros([64, 128], gl.float32, layout)
    right = gl.zeros([64, 128], gl.float32, layout)
    zero = gl.zeros([64, 128], gl.float32, layout)
    last = step + groups - 1
    stage = _wait_full(tiles, step)
    scales = _scales(tiles, stage, FIRST, layout)
    for _ in range(groups):
        step = gl.minimum(step + 1, last)
        part = warpgroup_mma_wait(0, [_product(tiles, stage, FIRST, 0, zero, False)])
        left = warpgroup_mma_wait(0, [left + part * scales[:, None]])
        begun = _product(tiles, stage, FIRST, 128, zero, False)
        next_stage = _wait_full(tiles, step)
        next_scales = _scales(tiles, next_stage, FIRST, layout)
        part = warpgroup_mma_wait(0, [begun])
        mbarrier.arrive(empty.index(stage), count=1)
        right = warpgroup_mma_wait(0, [right + part * scales[:, None]])
        stage = next_stage
        scales = next_scales
    return left, right


@gluon.jit
def sum_both_pieces(tiles, step, groups, FIRST: gl.constexpr, layout: gl.constexpr):
    """Two pieces, one 128 rows below the other.

    To wait for a stage as ``sum_pieces`` does would hold the one before back from the group that
    decodes.  Counted and not divided, the next stage's place is known at once.
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
        part = warpgroup_mma_wait(0, [_product(tiles, stage, FIRST, 0, zero, False)])
        first += part * scales[:, None]
        scales = _scales(tiles, stage, SECOND, layout)
        part = warpgroup_mma_wait(0, [_product(tiles, stage, SECOND, 0, zero, False)])
        mbarrier.arrive(empty.index(stage), count=1)
        second += part * scales[:, None]
        is_last = stage == STAGES - 1
        stage = gl.where(is_last, 0, stage + 1)
        phase = gl.where(is_last, phase ^ 1, phase)
    return first, second


@gluon.jit
def sum_first_piece(tiles, step, groups, FIRST: gl.constexpr, layout: gl.constexpr):
    """The first of the two pieces alone."""
    x_tiles, w_tiles, s_tiles, full, empty = tiles
    first = gl.zeros([64, 128], gl.float32, layout)
    zero = gl.zeros([64, 128], gl.float32, layout)
    for _ in range(groups):
        stage = _wait_full(tiles, step)
        scales = _scales(tiles, stage, FIRST, layout)
        part = warpgroup_mma_wait(0, [_product(tiles, stage, FIRST, 0, zero, False)])
        mbarrier.arrive(empty.index(stage), count=1)
        first += part * scales[:, None]
        step += 1
    return first


@gluon.jit
def sum_piece(tiles, step, groups, FIRST: gl.constexpr, RUN: gl.constexpr, layout: gl.constexpr):
    """One piece, RUN steps at a time, and the rest by twos."""
    total = gl.zeros([64, 128], gl.float32, layout)
    for _ in range(groups // RUN):
        total = _sum_run(tiles, total, step, FIRST, RUN, layout)
        step += RUN
    for _ in range(groups % RUN // 2):
        total = _sum_run(tiles, total, step, FIRST, 2, layout)
        step += 2
    return total


@gluon.jit
def _sum_run(tiles, total, step, FIRST: gl.constexpr, COUNT: gl.constexpr, layout: gl.constexpr):
    """Add the products of COUNT steps, each while the next one runs."""
    x_tiles, w_tiles, s_tiles, full, empty = tiles
    stage = _wait_full(tiles, step)
    scales = _scales(tiles, stage, FIRST, layout)
    done = gl.zeros([64, 128], gl.float32, layout)
    part = _product(tiles, stage, FIRST, 0, done, False)
    for ahead in gl.static_range(1, COUNT):
        next_stage = _wait_full(tiles, step + ahead)
        next_scales = _scales(tiles, next_stage, FIRST, layout)
        # Nothing is added: the condition is never true.  The compiler does not know that, and so
        # takes the registers of the product before the last one again.
        next_part = _product(tiles, next_stage, FIRST, 0, done, step < 0)
        done = warpgroup_mma_wait(1, [part])
        mbarrier.arrive(empty.index(stage), count=1)
        # Waits for nothing more, but keeps this sum from moving behind the next product.
        total = warpgroup_mma_wait(1, [total + done * scales[:, None]])
        stage = next_stage
        scales = next_scales
        part = next_part
    done = warpgroup_mma_wait(0, [part])
    mbarrier.arrive(empty.index(stage), count=1)
    total += done * scales[:, None]
    return total


@gluon.jit
def _wait_full(tiles, step):
    x_tiles, w_tiles, s_tiles, full, empty = tiles
    STAGES: gl.constexpr = x_tiles.shape[0]
    stage = step % STAGES
    mbarrier.wait(full.index(stage), (step // STAGES) & 1)
    return stage


@gluon.jit
def _scales(tiles, stage, ROW: gl.constexpr, layout: gl.constexpr):
    x_tiles, w_tiles, s_tiles, full, empty = tiles
    return s_tiles.index(stage).slice(ROW, 64).load(gl.SliceLayout(1, layout))


@gluon.jit
def _product(tiles, stage, ROW: gl.constexpr, COLUMN: gl.constexpr, registers, is_added):
    """Start the product of 64 rows and 128 columns of a stage, ``registers`` added if so."""
    x_tiles, w_tiles, s_tiles, full, empty = tiles
    rows = x_tiles.index(stage).slice(ROW, 64)
    columns = w_tiles.index(stage).slice(COLUMN, 128).permute((1, 0))
    return warpgroup_mma(rows, columns, registers, use_acc=is_added, is_async=True)


@gluon.jit
def has_pair(row_pair, row, GROUPED: gl.constexpr):
    """Rows of no pair come last in a tile."""
    if GROUPED:
        return gl.load(row_pair + row) >= 0
    else:  # noqa: RET505 - both are compiled otherwise
        return row >= 0


@gluon.jit
def factors_ahead(factors, row):
    """Those of 128 columns, one for each thread: on their way while products are summed."""
    return gl.load(factors + row + gl.arange(0, 128, gl.BlockedLayout([1], [32], [4], [0])))


@gluon.jit
def scaled(total, factors):
    """[64, 128] sums times the factors of their columns."""
    layout: gl.constexpr = gl.SliceLayout(0, total.type.layout)
    return total * gl.convert_layout(factors, layout)[None, :]


@gluon.jit
def store_piece(out, buffer, total, row, column):
    """Write [64, 128] sums by way of shared memory; what lies outside of ``out`` is cut off."""
    tma.store_wait(0)
    buffer.store(total.to(gl.bfloat16))
    fence_async_shared()
    store_tile(out, [row, column], buffer)
