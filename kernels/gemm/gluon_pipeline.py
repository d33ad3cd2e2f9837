"""Shared by the SM90 kernels: barriers of the pipeline, and the order and operands of tiles."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from deepinfer.kernels.gluon_names import load_tile, thread_barrier


@gluon.jit
def barriers(STAGES: gl.constexpr, FULL: gl.constexpr, EMPTY: gl.constexpr):
    """Full and empty mbarriers of a pipeline; FULL and EMPTY are their arrival counts."""
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=FULL)
        mbarrier.init(empty.index(stage), count=EMPTY)
    return full, empty


@gluon.jit
def wait_empty(empty, step):
    """Wait until the stage of ``step`` is free.  A fresh barrier counts as having completed the
    phase before its first, so the first round does not block."""
    STAGES: gl.constexpr = empty.shape[0]
    mbarrier.wait(empty.index(step % STAGES), ((step // STAGES) & 1) ^ 1)


@gluon.jit
def wait_full(full, step):
    """Wait until the stage of ``step`` is loaded; returns its index."""
    STAGES: gl.constexpr = full.shape[0]
    stage = step % STAGES
    mbarrier.wait(full.index(stage), (step // STAGES) & 1)
    return stage


@gluon.jit
def skip_stages(full, empty, step, groups):
    """Release the stages of a tile that is left to the other consumer warpgroups.

    One thread arrives for all: without MMAs, which keep the warps of a group in step, a warp that
    has not observed a phase could miss it once the stage is refilled, and deadlock.
    """
    for _ in range(groups):
        stage = wait_full(full, step)
        thread_barrier()
        mbarrier.arrive(empty.index(stage), count=1)
        step += 1


@gluon.jit
def tile_coordinates(tile, num_columns, num_row_tiles, GROUP_M: gl.constexpr):
    """(row tile, column tile): GROUP_M row tiles that run concurrently share columns, for reuse in
    L2."""
    band = tile // (GROUP_M * num_columns)
    inner = tile % (GROUP_M * num_columns)
    height = gl.minimum(num_row_tiles - band * GROUP_M, GROUP_M)
    return band * GROUP_M + inner % height, inner // height


@gluon.jit
def num_work_units(num_tiles, SPLIT: gl.constexpr):
    """Number of work units: one per tile, but with SPLIT two per tail tile, each of half its rows,
    if the last wave then still fits on the device."""
    left = num_tiles % gl.num_programs(0) if SPLIT else 0
    return num_tiles + gl.where(2 * left <= gl.num_programs(0), left, 0)


@gluon.jit
def tile_of_unit(unit, num_tiles, SPLIT: gl.constexpr):
    """(tile, whether only half of it, which half) of a work unit, see ``num_work_units``."""
    whole = num_tiles - num_tiles % gl.num_programs(0)
    units = num_work_units(num_tiles, SPLIT)
    is_half = (unit >= whole) & (units > num_tiles)
    tile = gl.where(is_half, whole + (unit - whole) // 2, unit)
    return tile, is_half, gl.where(is_half, (unit - whole) % 2, 0)


@gluon.jit
def weight_row(tile_expert, row_tile, column, N, GROUPED: gl.constexpr):
    """First row of the weight's tile in the stack of experts."""
    row = column
    if GROUPED:
        row += gl.load(tile_expert + row_tile) * N
    return row


@gluon.jit
def first_input(column, K, GROUP_COLUMNS: gl.constexpr):
    """Offset in a row of x of the K inputs of a column, in a grouped linear layer with
    GROUP_COLUMNS columns per group (0: not grouped)."""
    return column // GROUP_COLUMNS * K if GROUP_COLUMNS > 0 else 0


@gluon.jit
def load_rows(x, x_scales, tiles, row, group, scale_stride, stage):
    """Load a tile of x, 128 along K from ``row`` on, and its scales."""
    x_tiles, w_tiles, s_tiles, full, empty = tiles
    bar = full.index(stage)
    load_tile(x, [row, group * 128], bar, x_tiles.index(stage))
    load_tile(x_scales, [group * scale_stride + row], bar, s_tiles.index(stage))
