"""Products of bf16 rows with a weight of few rows on NVIDIA SM90, for parts of K by themselves.

A persistent kernel in Gluon: one warp fetches tiles, 64 inputs at a time; each group of four warps
multiplies 64 rows of the weight, the left operand, by the tile's rows of x.  The matrix unit adds
the inputs of a part in ascending order in fp32: the same chain as in ``triton_kernel.py``, and so
the same bits.  Parts that a program computes one after the other may leave added up.
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

from .gluon_ring import barriers, wait_empty

INPUTS = gl.constexpr(64)


# Sizes that follow the batch must not make new variants of the kernel.
@gluon.jit(do_not_specialize=["num_rows", "num_preset", "preset_to"])
def parts_kernel(
    x, w, out, preset, num_preset, preset_to, num_rows, N, K, PARTS: gl.constexpr,
    ADDED: gl.constexpr, PIECES: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """x [R, PARTS ADDED K] bf16 times each K of w [N, PARTS ADDED K] bf16, ADDED in turn summed in
    ascending order, to out [R, PARTS N] f32.

    Boxes of x are 64 or 128 rows, those of w 64; a tile is PIECES boxes of w, 1 or 3.  ``preset``
    [num_preset] i32 is set to ``preset_to``.
    """
    ROWS: gl.constexpr = x.block_shape[0]
    x_tiles = gl.allocate_shared_memory(gl.bfloat16, [STAGES, ROWS, INPUTS], x.layout)
    w_tiles = gl.allocate_shared_memory(gl.bfloat16, [PIECES * STAGES, 64, INPUTS], w.layout)
    o_tiles = gl.allocate_shared_memory(gl.float32, [PIECES, out.block_shape[0], 64], out.layout)
    full, empty = barriers(STAGES, 1, PIECES)
    fence_async_shared()
    set_numbers(preset, num_preset, preset_to)
    work = (num_rows, N, K)
    walk = (gl.program_id(0), gl.num_programs(0), 0)
    tiles = (x_tiles, w_tiles, full, empty)
    if PIECES == 1:
        gl.warp_specialize(
            [
                (_multiply_first, (work, walk, tiles, out, o_tiles, PARTS, ADDED)),
                (fetch_parts, (x, w, work, walk, tiles, PARTS, ADDED)),
            ],
            [1],
            [24],
        )
    else:
        gl.warp_specialize(
            [
                (_multiply_first, (work, walk, tiles, out, o_tiles, PARTS, ADDED)),
                (_multiply_second, (work, walk, tiles, out, o_tiles, PARTS, ADDED)),
                (_multiply_third, (work, walk, tiles, out, o_tiles, PARTS, ADDED)),
                (fetch_parts, (x, w, work, walk, tiles, PARTS, ADDED)),
            ],
            [4, 4, 1],
            [160, 160, 24],
        )


@gluon.jit
def set_numbers(numbers, count, value):
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
    """(row, part, column): programs that run together share rows."""
    num_rows, N, K = work
    x_tiles, w_tiles, full, empty = tiles
    WIDTH: gl.constexpr = 64 * (w_tiles.shape[0] // x_tiles.shape[0])
    columns = gl.cdiv(N, WIDTH)
    rest = tile // columns
    return rest // PARTS * x_tiles.shape[1], rest % PARTS, tile % columns * WIDTH


@gluon.jit
def fetch_parts(x, w, work, walk, tiles, PARTS: gl.constexpr, ADDED: gl.constexpr):
    """``walk``: the first tile of this program, from one to its next, steps that were before."""
    num_rows, N, K = work
    begin, stride, step = walk
    x_tiles, w_tiles, full, empty = tiles
    STAGES: gl.constexpr = x_tiles.shape[0]
    PIECES: gl.constexpr = w_tiles.shape[0] // STAGES
    for tile in range(begin, _num_tiles(work, tiles, PARTS), stride):
        row, part, column = _place(tile, work, tiles, PARTS)
        first = part * ADDED * K
        for start in range(first, first + ADDED * K, INPUTS):
            stage = step % STAGES
            bar = full.index(stage)
            wait_empty(empty, step)
            mbarrier.expect(bar, x.block_type.nbytes + PIECES * w.block_type.nbytes)
            load_tile(x, [row, start], bar, x_tiles.index(stage))
            for piece in gl.static_range(PIECES):
                place = w_tiles.index(stage * PIECES + piece)
                load_tile(w, [column + piece * 64, start], bar, place)
            step += 1


@gluon.jit
def _multiply_first(work, walk, tiles, out, o_tiles, PARTS: gl.constexpr, ADDED: gl.constexpr):
    multiply_parts(work, walk, tiles, out, o_tiles, PARTS, ADDED, 0)


@gluon.jit
def _multiply_second(work, walk, tiles, out, o_tiles, PARTS: gl.constexpr, ADDED: gl.constexpr):
    multiply_parts(work, walk, tiles, out, o_tiles, PARTS, ADDED, 1)


@gluon.jit
def _multiply_third(work, walk, tiles, out, o_tiles, PARTS: gl.constexpr, ADDED: gl.constexpr):
    multiply_parts(work, walk, tiles, out, o_tiles, PARTS, ADDED, 2)


@gluon.jit
def multiply_parts(
    work, walk, tiles, out, o_tiles,
    PARTS: gl.constexpr, ADDED: gl.constexpr, PIECE: gl.constexpr,
):  # fmt: skip
    num_rows, N, K = work
    begin, stride, step = walk
    for tile in range(begin, _num_tiles(work, tiles, PARTS), stride):
        row, part, column = _place(tile, work, tiles, PARTS)
        column += PIECE * 64
        total = _sum_part(tiles, step, K, PIECE)
        step += K // INPUTS
        for _ in range(ADDED - 1):
            total += _sum_part(tiles, step, K, PIECE)
            step += K // INPUTS
        if column < N:  # there the next part begins
            _store(out, o_tiles.index(PIECE), total, row, part * N + column)
    tma.store_wait(0)


@gluon.jit
def _sum_part(tiles, step, K, PIECE: gl.constexpr):
    """64 rows of the weight by the rows of a tile of x."""
    x_tiles, w_tiles, full, empty = tiles
    STAGES: gl.constexpr = x_tiles.shape[0]
    PIECES: gl.constexpr = w_tiles.shape[0] // STAGES
    ROWS: gl.constexpr = x_tiles.shape[1]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    total = gl.zeros([64, ROWS], gl.float32, layout)
    for start in range(0, K, INPUTS):
        stage = step % STAGES
        mbarrier.wait(full.index(stage), (step // STAGES) & 1)
        piece = w_tiles.index(stage * PIECES + PIECE)
        rows = x_tiles.index(stage).permute((1, 0))
        total = warpgroup_mma(piece, rows, total, is_async=True)
        total = warpgroup_mma_wait(1, [total])
        # The products of the stage before are done.
        mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), count=1, pred=start > 0)
        step += 1
    total = warpgroup_mma_wait(0, [total])
    mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), count=1)
    return total


@gluon.jit
def _store(out, buffer, values, row, column):
    """Write [64, rows] sums by way of shared memory, a box at a time."""
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
