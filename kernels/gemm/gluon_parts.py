"""Split-K bf16 GEMM for a weight of few rows on NVIDIA SM90.

A persistent, warp-specialized kernel in Gluon: a producer warp loads tiles of 64 along K; each
consumer warpgroup multiplies 64 rows of the weight, the left operand, by the rows of x in the tile.
The tensor cores accumulate a part of K in ascending order in fp32, as in ``triton_kernel.py``, so
the bits are the same.  A program may compute all parts in sequence and add them up itself.
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

from .gluon_pipeline import barriers, wait_empty

INPUTS = gl.constexpr(64)


# Sizes that depend on the batch must not cause recompilation.
@gluon.jit(do_not_specialize=["num_rows", "num_preset", "preset_to"])
def parts_kernel(
    x, w, out, preset, num_preset, preset_to, num_rows, N, K, PARTS: gl.constexpr,
    ADDED: gl.constexpr, SUBTILES: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """x [R, PARTS ADDED K] bf16 times w [N, PARTS ADDED K] bf16 over each part of K; ADDED
    consecutive parts are added up in ascending order: out [R, PARTS N] f32.

    TMA boxes of x have 64 or 128 rows, those of w 64; a tile has SUBTILES boxes of w, 1 or 3.
    ``preset`` [num_preset] i32 is filled with ``preset_to``.
    """
    ROWS: gl.constexpr = x.block_shape[0]
    x_tiles = gl.allocate_shared_memory(gl.bfloat16, [STAGES, ROWS, INPUTS], x.layout)
    w_tiles = gl.allocate_shared_memory(gl.bfloat16, [SUBTILES * STAGES, 64, INPUTS], w.layout)
    o_tiles = gl.allocate_shared_memory(gl.float32, [SUBTILES, out.block_shape[0], 64], out.layout)
    full, empty = barriers(STAGES, 1, SUBTILES)
    fence_async_shared()
    fill(preset, num_preset, preset_to)
    work = (num_rows, N, K)
    walk = (gl.program_id(0), gl.num_programs(0), 0)
    tiles = (x_tiles, w_tiles, full, empty)
    if SUBTILES == 1:
        gl.warp_specialize(
            [
                (_consume_first, (work, walk, tiles, out, o_tiles, PARTS, ADDED)),
                (produce_parts, (x, w, work, walk, tiles, PARTS, ADDED)),
            ],
            [1],
            [24],
        )
    else:
        gl.warp_specialize(
            [
                (_consume_first, (work, walk, tiles, out, o_tiles, PARTS, ADDED)),
                (_consume_second, (work, walk, tiles, out, o_tiles, PARTS, ADDED)),
                (_consume_third, (work, walk, tiles, out, o_tiles, PARTS, ADDED)),
                (produce_parts, (x, w, work, walk, tiles, PARTS, ADDED)),
            ],
            [4, 4, 1],
            [160, 160, 24],
        )


@gluon.jit
def fill(numbers, count, value):
    lane = gl.arange(0, 128, gl.BlockedLayout([1], [32], [4], [0]))
    for start in range(gl.program_id(0) * 128, count, gl.num_programs(0) * 128):
        gl.store(numbers + start + lane, gl.zeros_like(lane) + value, mask=start + lane < count)


@gluon.jit
def _num_tiles(work, tiles, PARTS: gl.constexpr):
    num_rows, N, K = work
    x_tiles, w_tiles, full, empty = tiles
    WIDTH: gl.constexpr = 64 * (w_tiles.shape[0] // x_tiles.shape[0])
    return gl.cdiv(num_rows, x_tiles.shape[1]) * PARTS * gl.cdiv(N, WIDTH)


@gluon.jit
def _place(tile, work, tiles, PARTS: gl.constexpr):
    """(row, part, column): programs that run concurrently share rows."""
    num_rows, N, K = work
    x_tiles, w_tiles, full, empty = tiles
    WIDTH: gl.constexpr = 64 * (w_tiles.shape[0] // x_tiles.shape[0])
    columns = gl.cdiv(N, WIDTH)
    rest = tile // columns
    return rest // PARTS * x_tiles.shape[1], rest % PARTS, tile % columns * WIDTH


@gluon.jit
def produce_parts(x, w, work, walk, tiles, PARTS: gl.constexpr, ADDED: gl.constexpr):
    """``walk``: first tile of this program, stride to its next, pipeline steps done before."""
    num_rows, N, K = work
    begin, stride, step = walk
    x_tiles, w_tiles, full, empty = tiles
    STAGES: gl.constexpr = x_tiles.shape[0]
    SUBTILES: gl.constexpr = w_tiles.shape[0] // STAGES
    for tile in range(begin, _num_tiles(work, tiles, PARTS), stride):
        row, part, column = _place(tile, work, tiles, PARTS)
        first = part * ADDED * K
        for start in range(first, first + ADDED * K, INPUTS):
            stage = step % STAGES
            bar = full.index(stage)
            wait_empty(empty, step)
            mbarrier.expect(bar, x.block_type.nbytes + SUBTILES * w.block_type.nbytes)
            load_tile(x, [row, start], bar, x_tiles.index(stage))
            for subtile in gl.static_range(SUBTILES):
                place = w_tiles.index(stage * SUBTILES + subtile)
                load_tile(w, [column + subtile * 64, start], bar, place)
            step += 1


@gluon.jit
def _consume_first(work, walk, tiles, out, o_tiles, PARTS: gl.constexpr, ADDED: gl.constexpr):
    consume_parts(work, walk, tiles, out, o_tiles, PARTS, ADDED, 0)


@gluon.jit
def _consume_second(work, walk, tiles, out, o_tiles, PARTS: gl.constexpr, ADDED: gl.constexpr):
    consume_parts(work, walk, tiles, out, o_tiles, PARTS, ADDED, 1)


@gluon.jit
def _consume_third(work, walk, tiles, out, o_tiles, PARTS: gl.constexpr, ADDED: gl.constexpr):
    consume_parts(work, walk, tiles, out, o_tiles, PARTS, ADDED, 2)


@gluon.jit
def consume_parts(
    work, walk, tiles, out, o_tiles,
    PARTS: gl.constexpr, ADDED: gl.constexpr, SUBTILE: gl.constexpr,
):  # fmt: skip
    num_rows, N, K = work
    begin, stride, step = walk
    for tile in range(begin, _num_tiles(work, tiles, PARTS), stride):
        row, part, column = _place(tile, work, tiles, PARTS)
        column += SUBTILE * 64
        acc = _mainloop(tiles, step, K, SUBTILE)
        step += K // INPUTS
        for _ in range(ADDED - 1):
            acc += _mainloop(tiles, step, K, SUBTILE)
            step += K // INPUTS
        if column < N:  # else it would overwrite the next part
            _store(out, o_tiles.index(SUBTILE), acc, row, part * N + column)
    tma.store_wait(0)


@gluon.jit
def _mainloop(tiles, step, K, SUBTILE: gl.constexpr):
    """Main loop over one part of K: 64 rows of the weight by the rows of a tile of x."""
    x_tiles, w_tiles, full, empty = tiles
    STAGES: gl.constexpr = x_tiles.shape[0]
    SUBTILES: gl.constexpr = w_tiles.shape[0] // STAGES
    ROWS: gl.constexpr = x_tiles.shape[1]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    acc = gl.zeros([64, ROWS], gl.float32, layout)
    for start in range(0, K, INPUTS):
        stage = step % STAGES
        mbarrier.wait(full.index(stage), (step // STAGES) & 1)
        subtile = w_tiles.index(stage * SUBTILES + SUBTILE)
        rows = x_tiles.index(stage).permute((1, 0))
        acc = warpgroup_mma(subtile, rows, acc, is_async=True)
        acc = warpgroup_mma_wait(1, [acc])
        # The MMAs that read the previous stage have finished.
        mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), count=1, pred=start > 0)
        step += 1
    acc = warpgroup_mma_wait(0, [acc])
    mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), count=1)
    return acc


@gluon.jit
def _store(out, buffer, values, row, column):
    """Store an accumulator [64, rows] through shared memory, one TMA box at a time."""
    if values.shape[1] == out.block_shape[0]:
        tma.store_wait(0)
        buffer.permute((1, 0)).store(values)
        fence_async_shared()
        store_tile(out, [row, column], buffer)
    else:
        HALF: gl.constexpr = values.shape[1] // 2
        halves = gl.reshape(values, (values.shape[0], 2, HALF))
        upper, lower = gl.split(gl.permute(halves, (0, 2, 1)))
        _store(out, buffer, upper, row, column)
        _store(out, buffer, lower, row + HALF, column)
