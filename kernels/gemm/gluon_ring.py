"""What the kernels of SM90 share: rings of stages, and the order and operands of their tiles."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from deepinfer.kernels.gluon_names import load_tile


@gluon.jit
def barriers(STAGES: gl.constexpr, FULL: gl.constexpr, EMPTY: gl.constexpr):
    """For each stage of a ring: how many arrivals fill it, how many readers must leave it."""
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=FULL)
        mbarrier.init(empty.index(stage), count=EMPTY)
    return full, empty


@gluon.jit
def wait_empty(empty, step):
    """A fresh barrier lets the wait for the phase before its first pass."""
    STAGES: gl.constexpr = empty.shape[0]
    mbarrier.wait(empty.index(step % STAGES), ((step // STAGES) & 1) ^ 1)


@gluon.jit
def place_in_band(tile, num_columns, num_row_tiles, BAND: gl.constexpr):
    """(row tile, column tile): BAND row tiles that run together share columns."""
    band = tile // (BAND * num_columns)
    inner = tile % (BAND * num_columns)
    height = gl.minimum(num_row_tiles - band * BAND, BAND)
    return band * BAND + inner % height, inner // height


@gluon.jit
def jobs_of(num_tiles, SPLIT: gl.constexpr):
    """How many jobs the programs share: tiles, or with SPLIT halves of those that come last, if
    that gives no program a second one."""
    left = num_tiles % gl.num_programs(0) if SPLIT else 0
    return num_tiles + gl.where(2 * left <= gl.num_programs(0), left, 0)


@gluon.jit
def tile_of(job, num_tiles, SPLIT: gl.constexpr):
    """(tile, whether half of it, which half) of one of the jobs of ``jobs_of``."""
    whole = num_tiles - num_tiles % gl.num_programs(0)
    jobs = jobs_of(num_tiles, SPLIT)
    is_half = (job >= whole) & (jobs > num_tiles)
    tile = gl.where(is_half, whole + (job - whole) // 2, job)
    return tile, is_half, gl.where(is_half, (job - whole) % 2, 0)


@gluon.jit
def weight_row(tile_expert, row_tile, column, N, GROUPED: gl.constexpr):
    """First row of the weight's tile."""
    row = column
    if GROUPED:
        row += gl.load(tile_expert + row_tile) * N
    return row


@gluon.jit
def first_input(column, K, GROUP_COLUMNS: gl.constexpr):
    """Where the inputs of a column begin, if each ``GROUP_COLUMNS`` of them meet K of their own."""
    return column // GROUP_COLUMNS * K if GROUP_COLUMNS > 0 else 0


@gluon.jit
def fetch_rows(x, x_scales, tiles, row, group, scale_stride, stage):
    """128 inputs of a tile's rows from ``row`` on, and their scales."""
    x_tiles, w_tiles, s_tiles, full, empty = tiles
    bar = full.index(stage)
    load_tile(x, [row, group * 128], bar, x_tiles.index(stage))
    load_tile(x_scales, [group * scale_stride + row], bar, s_tiles.index(stage))
