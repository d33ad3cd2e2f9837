"""Products of bf16 rows with a weight of few rows on NVIDIA SM90, for parts of K by themselves.

A persistent kernel in Gluon: one warp fetches tiles, 64 inputs at a time; two groups of four warps
multiply 64 rows by 192 columns each.  The matrix unit adds the inputs of a part in ascending order
in fp32: the same chain as in ``triton_kernel.py``, and so the same bits.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from deepinfer.kernels.gluon_names import load_tile

from .gluon_ring import barriers, wait_empty

ROWS = gl.constexpr(128)
INPUTS = gl.constexpr(64)
# 192 columns as two powers of two.
WIDE = gl.constexpr(128)
NARROW = gl.constexpr(64)


# Sizes that follow the batch must not make new variants of the kernel.
@gluon.jit(do_not_specialize=["num_rows"])
def parts_kernel(
    x, wide_w, narrow_w, out, num_rows, N, K, PARTS: gl.constexpr, STAGES: gl.constexpr
):
    """x [R, PARTS K] bf16 times each K of w [N, PARTS K] bf16, to out [PARTS, R, N] f32."""
    x_tiles = gl.allocate_shared_memory(gl.bfloat16, [STAGES, ROWS, INPUTS], x.layout)
    wide_tiles = gl.allocate_shared_memory(gl.bfloat16, [STAGES, WIDE, INPUTS], wide_w.layout)
    narrow_tiles = gl.allocate_shared_memory(gl.bfloat16, [STAGES, NARROW, INPUTS], narrow_w.layout)
    full, empty = barriers(STAGES, 1, 2)
    fence_async_shared()
    tiles = (x_tiles, wide_tiles, narrow_tiles, full, empty)
    gl.warp_specialize(
        [
            (_multiply_first, (tiles, out, num_rows, N, K, PARTS)),
            (_multiply_second, (tiles, out, num_rows, N, K, PARTS)),
            (_fetch, (x, wide_w, narrow_w, tiles, num_rows, N, K, PARTS)),
        ],
        [4, 1],
        [216, 24],
    )


@gluon.jit
def _place(tile, N, PARTS: gl.constexpr):
    """(row, part, column): programs that run together share rows."""
    columns = gl.cdiv(N, WIDE + NARROW)
    rest = tile // columns
    return rest // PARTS * ROWS, rest % PARTS, tile % columns * (WIDE + NARROW)


@gluon.jit
def _num_tiles(num_rows, N, PARTS: gl.constexpr):
    return gl.cdiv(num_rows, ROWS) * PARTS * gl.cdiv(N, WIDE + NARROW)


@gluon.jit
def _fetch(x, wide_w, narrow_w, tiles, num_rows, N, K, PARTS: gl.constexpr):
    x_tiles, wide_tiles, narrow_tiles, full, empty = tiles
    STAGES: gl.constexpr = x_tiles.shape[0]
    step = 0
    for tile in range(gl.program_id(0), _num_tiles(num_rows, N, PARTS), gl.num_programs(0)):
        row, part, column = _place(tile, N, PARTS)
        for start in range(part * K, part * K + K, INPUTS):
            stage = step % STAGES
            bar = full.index(stage)
            wait_empty(empty, step)
            mbarrier.expect(
                bar, x.block_type.nbytes + wide_w.block_type.nbytes + narrow_w.block_type.nbytes
            )
            load_tile(x, [row, start], bar, x_tiles.index(stage))
            load_tile(wide_w, [column, start], bar, wide_tiles.index(stage))
            load_tile(narrow_w, [column + WIDE, start], bar, narrow_tiles.index(stage))
            step += 1


@gluon.jit
def _multiply_first(tiles, out, num_rows, N, K, PARTS: gl.constexpr):
    _multiply(tiles, out, num_rows, N, K, PARTS, 0)


@gluon.jit
def _multiply_second(tiles, out, num_rows, N, K, PARTS: gl.constexpr):
    _multiply(tiles, out, num_rows, N, K, PARTS, 64)


@gluon.jit
def _multiply(tiles, out, num_rows, N, K, PARTS: gl.constexpr, FIRST: gl.constexpr):
    x_tiles, wide_tiles, narrow_tiles, full, empty = tiles
    STAGES: gl.constexpr = x_tiles.shape[0]
    wide_sums: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDE, 16])
    narrow_sums: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, NARROW, 16])
    step = 0
    for tile in range(gl.program_id(0), _num_tiles(num_rows, N, PARTS), gl.num_programs(0)):
        row, part, column = _place(tile, N, PARTS)
        wide = gl.zeros([64, WIDE], gl.float32, wide_sums)
        narrow = gl.zeros([64, NARROW], gl.float32, narrow_sums)
        for start in range(0, K, INPUTS):
            stage = step % STAGES
            mbarrier.wait(full.index(stage), (step // STAGES) & 1)
            rows = x_tiles.index(stage).slice(FIRST, 64)
            columns = wide_tiles.index(stage).permute((1, 0))
            wide = warpgroup_mma(rows, columns, wide, is_async=True)
            columns = narrow_tiles.index(stage).permute((1, 0))
            narrow = warpgroup_mma(rows, columns, narrow, is_async=True)
            wide, narrow = warpgroup_mma_wait(2, [wide, narrow])
            # The products of the stage before are done.
            mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), count=1, pred=start > 0)
            step += 1
        wide, narrow = warpgroup_mma_wait(0, [wide, narrow])
        mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), count=1)
        target = out + part.to(gl.int64) * num_rows * N
        _store(target, wide, row + FIRST, column, num_rows, N)
        _store(target, narrow, row + FIRST, column + WIDE, num_rows, N)


@gluon.jit
def _store(out, values, row, column, num_rows, N):
    layout: gl.constexpr = values.type.layout
    row += gl.arange(0, values.shape[0], gl.SliceLayout(1, layout))
    column += gl.arange(0, values.shape[1], gl.SliceLayout(0, layout))
    inside = (row < num_rows)[:, None] & (column < N)[None, :]
    gl.store(out + row.to(gl.int64)[:, None] * N + column[None, :], values, mask=inside)
