"""bf16 GEMM for many rows on NVIDIA SM90: a persistent, warp-specialized kernel in Gluon.

A producer warp loads tiles of 64 along K by TMA; two consumer warpgroups compute 64 rows by 256
columns each.  The tensor cores accumulate over K in ascending order in fp32, as in
``triton_kernel.py``, so the bits are the same.  The epilogue stores bf16 or fp32, optionally with
an addend, or quantizes for the next GEMM.
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

from .gluon_pipeline import barriers, tile_coordinates, wait_empty
from .gluon_quantize import store_quantized_tile

ROWS = gl.constexpr(128)
COLUMNS = gl.constexpr(256)
INPUTS = gl.constexpr(64)
SUMS = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 256, 16]))


# Sizes that depend on the batch must not cause recompilation.
@gluon.jit(do_not_specialize=["num_row_tiles", "num_rows", "scale_stride"])
def plain_kernel(
    x, w, out, scales, addend, num_row_tiles, num_rows, N, K, group_width, scale_stride,
    STAGES: gl.constexpr, GROUP_M: gl.constexpr, HAS_ADDEND: gl.constexpr,
):  # fmt: skip
    """x [R, G K] bf16 times w [N, K] bf16; out is [R, N] bf16 or f32, or pairs of E4M3
    [R, N / 2] i16 with ``scales`` [N / 128, scale_stride] f32.  HAS_ADDEND: plus addend [R, N] f32.

    Grouped linear layer: group g of ``group_width`` columns uses inputs g K to (g + 1) K of x.
    """
    x_tiles = gl.allocate_shared_memory(gl.bfloat16, [STAGES, ROWS, INPUTS], x.layout)
    w_tiles = gl.allocate_shared_memory(gl.bfloat16, [STAGES, COLUMNS, INPUTS], w.layout)
    o_tiles = gl.allocate_shared_memory(out.dtype, [2, 64, out.block_shape[1]], out.layout)
    full, empty = barriers(STAGES, 1, 2)
    fence_async_shared()
    work = (num_row_tiles, N, K)
    tiles = (x_tiles, w_tiles, full, empty)
    epilogue = (out, o_tiles, scales, scale_stride, addend, num_rows)
    gl.warp_specialize(
        [
            (_consume_first, (work, tiles, epilogue, GROUP_M, HAS_ADDEND)),
            (_consume_second, (work, tiles, epilogue, GROUP_M, HAS_ADDEND)),
            (_produce, (x, w, work, tiles, group_width, GROUP_M)),
        ],
        [4, 1],
        [216, 24],
    )


@gluon.jit
def _produce(x, w, work, tiles, group_width, GROUP_M: gl.constexpr):
    num_row_tiles, N, K = work
    x_tiles, w_tiles, full, empty = tiles
    STAGES: gl.constexpr = x_tiles.shape[0]
    num_columns = gl.cdiv(N, COLUMNS)
    step = 0
    for tile in range(gl.program_id(0), num_row_tiles * num_columns, gl.num_programs(0)):
        row_tile, column = tile_coordinates(tile, num_columns, num_row_tiles, GROUP_M)
        first = column * COLUMNS // group_width * K
        for start in range(0, K, INPUTS):
            stage = step % STAGES
            bar = full.index(stage)
            wait_empty(empty, step)
            mbarrier.expect(bar, x.block_type.nbytes + w.block_type.nbytes)
            load_tile(x, [row_tile * ROWS, first + start], bar, x_tiles.index(stage))
            load_tile(w, [column * COLUMNS, start], bar, w_tiles.index(stage))
            step += 1


@gluon.jit
def _consume_first(work, tiles, epilogue, GROUP_M: gl.constexpr, HAS_ADDEND: gl.constexpr):
    _consume(work, tiles, epilogue, 0, GROUP_M, HAS_ADDEND)


@gluon.jit
def _consume_second(work, tiles, epilogue, GROUP_M: gl.constexpr, HAS_ADDEND: gl.constexpr):
    _consume(work, tiles, epilogue, 1, GROUP_M, HAS_ADDEND)


@gluon.jit
def _consume(
    work, tiles, epilogue, HALF: gl.constexpr, GROUP_M: gl.constexpr, HAS_ADDEND: gl.constexpr
):
    num_row_tiles, N, K = work
    x_tiles, w_tiles, full, empty = tiles
    STAGES: gl.constexpr = x_tiles.shape[0]
    num_columns = gl.cdiv(N, COLUMNS)
    step = 0
    for tile in range(gl.program_id(0), num_row_tiles * num_columns, gl.num_programs(0)):
        row_tile, column = tile_coordinates(tile, num_columns, num_row_tiles, GROUP_M)
        acc = gl.zeros([64, COLUMNS], gl.float32, SUMS)
        for start in range(0, K, INPUTS):
            stage = step % STAGES
            mbarrier.wait(full.index(stage), (step // STAGES) & 1)
            rows = x_tiles.index(stage).slice(HALF * 64, 64)
            columns = w_tiles.index(stage).permute((1, 0))
            acc = warpgroup_mma(rows, columns, acc, is_async=True)
            acc = warpgroup_mma_wait(1, [acc])
            # The MMAs that read the previous stage have finished.
            mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), count=1, pred=start > 0)
            step += 1
        acc = warpgroup_mma_wait(0, [acc])
        mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), count=1)
        row = row_tile * ROWS + HALF * 64
        left, right = _halves(acc)
        if HAS_ADDEND:
            left = _plus_addend(epilogue, left, row, column * COLUMNS, N)
            right = _plus_addend(epilogue, right, row, column * COLUMNS + 128, N)
        _store(epilogue, left, row, column * COLUMNS, HALF)
        _store(epilogue, right, row, column * COLUMNS + 128, HALF)
    tma.store_wait(0)


@gluon.jit
def _halves(x):
    """Split [R, C] into its left and right [R, C / 2]."""
    return gl.split(gl.permute(gl.reshape(x, (x.shape[0], 2, x.shape[1] // 2)), (0, 2, 1)))


@gluon.jit
def _plus_addend(epilogue, values, row, column, N):
    out, o_tiles, scales, scale_stride, addend, num_rows = epilogue
    layout: gl.constexpr = values.type.layout
    rows = row + gl.arange(0, values.shape[0], gl.SliceLayout(1, layout))
    columns = column + gl.arange(0, values.shape[1], gl.SliceLayout(0, layout))
    inside = (rows < num_rows)[:, None] & (columns < N)[None, :]
    places = addend + rows.to(gl.int64)[:, None] * N + columns[None, :]
    return gl.load(places, mask=inside, other=0.0) + values


@gluon.jit
def _store(epilogue, values, row, column, HALF: gl.constexpr):
    """Store a [64, 128] accumulator through shared memory by TMA, which clips it to ``out``."""
    out, o_tiles, scales, scale_stride, addend, num_rows = epilogue
    buffer = o_tiles.index(HALF)
    if out.dtype == gl.int16:
        store_quantized_tile(out, buffer, values, row, column, scales, scale_stride)
    elif buffer.shape[1] == 128:
        _store_part(out, buffer, values, row, column)
    else:
        left, right = _halves(values)
        _store_part(out, buffer, left, row, column)
        _store_part(out, buffer, right, row, column + 64)


@gluon.jit
def _store_part(out, buffer, values, row, column):
    tma.store_wait(0)
    buffer.store(values.to(buffer.dtype))
    fence_async_shared()
    store_tile(out, [row, column], buffer)
