"""Hyper-connections on NVIDIA SM90, in Gluon: expand, collapse and mix in one pass.

A unit of work is 64 tokens of 128 columns of each stream, in two steps.  One warp fetches them by
TMA; two groups of four warps take turns with units.  They write what the streams become back to
where these were in shared memory: TMA stores it from there, and the matrix unit multiplies it by
the mixing weights.  A program works through the tokens of few pieces of the width, so that their
weights stay in shared memory.
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

from deepinfer.kernels.gemm.gluon_ring import barriers, wait_empty
from deepinfer.kernels.gluon_names import load_tile, store_tile, thread_barrier

TOKENS = gl.constexpr(64)
WIDTH = gl.constexpr(64)
STEPS = gl.constexpr(2)
STREAMS = gl.constexpr(4)
PARTS = gl.constexpr(3)
ROWS = gl.constexpr(24)
PADDED_ROWS = gl.constexpr(32)
# A thread holds 16 columns of one token, and reads shared memory without bank conflicts.
VALUES = gl.constexpr(gl.BlockedLayout([1, 16], [16, 2], [4, 1], [0, 1]))
# Four numbers of one token, by the same threads.
FOUR = gl.constexpr(gl.BlockedLayout([1, 4], [16, 2], [4, 1], [0, 1]))
SUMS = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 32, 16]))


# Sizes that follow the batch must not make new variants of the kernel.
@gluon.jit(do_not_specialize=["num_tokens"])
def advance_kernel(
    x, added, fn, expanded, collapsed, post, comb, pre, products, squares, num_tokens, D,
    EXPAND: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """x [T, 4 D] bf16 becomes expanded [T, 4 D] and collapsed [T, D]; of each piece the products
    with fn [3 x 24, 4 D], bf16 parts, [pieces, T, 24] and the squares [pieces, T] are f32."""
    x_tiles = gl.allocate_shared_memory(gl.bfloat16, [STAGES * STREAMS, TOKENS, WIDTH], x.layout)
    o_tiles = gl.allocate_shared_memory(gl.bfloat16, [STAGES, TOKENS, WIDTH], added.layout)
    w_tiles = gl.allocate_shared_memory(
        gl.bfloat16, [STEPS * STREAMS * PARTS, PADDED_ROWS, WIDTH], fn.layout
    )
    full, empty = barriers(STAGES, 1, 1)
    w_full, w_empty = barriers(1, 1, 2)
    fence_async_shared()
    memory = (x_tiles, o_tiles, w_tiles, full, empty, w_full, w_empty)
    results = (expanded, collapsed, products, squares)
    coefficients = (post, comb, pre)
    gl.warp_specialize(
        [
            (_advance_even, (memory, coefficients, results, num_tokens, D, EXPAND)),
            (_advance_odd, (memory, coefficients, results, num_tokens, D, EXPAND)),
            (_fetch, (x, added, fn, memory, num_tokens, D, EXPAND)),
        ],
        [4, 1],
        [216, 24],
    )


@gluon.jit
def _own_units(num_tokens, D):
    """First and last unit of this program, token tiles of a piece; pieces one after the other."""
    num_tiles = gl.cdiv(num_tokens, TOKENS)
    units = num_tiles * (D // (STEPS * WIDTH))
    program, programs = gl.program_id(0), gl.num_programs(0)
    return units * program // programs, units * (program + 1) // programs, num_tiles


@gluon.jit
def _fetch(x, added, fn, memory, num_tokens, D, EXPAND: gl.constexpr):
    x_tiles, o_tiles, w_tiles, full, empty, w_full, w_empty = memory
    STAGES: gl.constexpr = full.shape[0]
    STEP_BYTES: gl.constexpr = STREAMS * x.block_type.nbytes + EXPAND * added.block_type.nbytes
    first, last, num_tiles = _own_units(num_tokens, D)
    first_piece = first // num_tiles
    for piece in range(first_piece, gl.cdiv(last, num_tiles)):
        start = (gl.maximum(first, piece * num_tiles) - first) * STEPS
        end = (gl.minimum(last, (piece + 1) * num_tiles) - first) * STEPS
        # Steps of the piece before may still be multiplied.
        weights_after = gl.minimum(start + STAGES, end) - 1
        for step in range(start, end):
            stage = step % STAGES
            bar = full.index(stage)
            token = (first + step // STEPS - piece * num_tiles) * TOKENS
            column = (piece * STEPS + step % STEPS) * WIDTH
            wait_empty(empty, step)
            mbarrier.expect(bar, STEP_BYTES)
            for stream in gl.static_range(STREAMS):
                tile = x_tiles.index(stage * STREAMS + stream)
                load_tile(x, [token, stream * D + column], bar, tile)
            if EXPAND:
                load_tile(added, [token, column], bar, o_tiles.index(stage))
            if step == weights_after:
                wait_empty(w_empty, piece - first_piece)
                _fetch_weights(fn, w_tiles, w_full.index(0), piece * (STEPS * WIDTH), D)


@gluon.jit
def _fetch_weights(fn, w_tiles, bar, column, D):
    mbarrier.expect(bar, STEPS * STREAMS * PARTS * fn.block_type.nbytes)
    for step in gl.static_range(STEPS):
        for stream in gl.static_range(STREAMS):
            for part in gl.static_range(PARTS):
                tile = w_tiles.index((step * STREAMS + stream) * PARTS + part)
                load_tile(fn, [part * ROWS, stream * D + column + step * WIDTH], bar, tile)


@gluon.jit
def _advance_even(memory, coefficients, results, num_tokens, D, EXPAND: gl.constexpr):
    _advance(memory, coefficients, results, num_tokens, D, EXPAND, 0)


@gluon.jit
def _advance_odd(memory, coefficients, results, num_tokens, D, EXPAND: gl.constexpr):
    _advance(memory, coefficients, results, num_tokens, D, EXPAND, 1)


@gluon.jit
def _advance(
    memory, coefficients, results, num_tokens, D, EXPAND: gl.constexpr,
    WHICH: gl.constexpr,
):  # fmt: skip
    """Every second unit."""
    _, _, _, _, _, w_full, w_empty = memory
    first, last, num_tiles = _own_units(num_tokens, D)
    first_piece = first // num_tiles
    for piece in range(first_piece, gl.cdiv(last, num_tiles)):
        start = gl.maximum(first, piece * num_tiles)
        end = gl.minimum(last, (piece + 1) * num_tiles)
        turn = piece - first_piece
        for unit in range(start + ((start - first + WHICH) & 1), end, 2):
            tile = unit - piece * num_tiles
            _unit(
                memory, coefficients, results, num_tokens, D, tile, piece, unit - first, turn,
                EXPAND,
            )  # fmt: skip
        mbarrier.wait(w_full.index(0), turn & 1)
        mbarrier.arrive(w_empty.index(0), count=1)
    tma.store_wait(0)


@gluon.jit
def _unit(
    memory, coefficients, results, num_tokens, D, tile, piece, unit, turn, EXPAND: gl.constexpr,
):  # fmt: skip
    x_tiles, o_tiles, w_tiles, full, empty, w_full, _ = memory
    post, comb, pre = coefficients
    expanded, collapsed, products_ptr, squares_ptr = results
    STAGES: gl.constexpr = full.shape[0]
    kept = _four(pre, tile, STREAMS, num_tokens)
    factors = kept
    mixed = (kept, kept, kept, kept)
    if EXPAND:
        factors = _four(post, tile, STREAMS, num_tokens)
        mixed = (
            _four(comb, tile, STREAMS * STREAMS, num_tokens),
            _four(comb + 4, tile, STREAMS * STREAMS, num_tokens),
            _four(comb + 8, tile, STREAMS * STREAMS, num_tokens),
            _four(comb + 12, tile, STREAMS * STREAMS, num_tokens),
        )
    squares = gl.zeros([TOKENS, WIDTH // 2], gl.float32, VALUES)
    products = gl.zeros([TOKENS, PADDED_ROWS], gl.float32, SUMS)
    for inner in range(STEPS):
        step = unit * STEPS + inner
        stage = step % STAGES
        column = (piece * STEPS + inner) * WIDTH
        mbarrier.wait(full.index(stage), (step // STAGES) & 1)
        for half in gl.static_range(2):
            squares = _mix_values(
                x_tiles, o_tiles, factors, mixed, kept, squares, stage, half * (WIDTH // 2), EXPAND
            )
        fence_async_shared()
        thread_barrier()
        if EXPAND:
            for stream in gl.static_range(STREAMS):
                place = [tile * TOKENS, stream * D + column]
                store_tile(expanded, place, x_tiles.index(stage * STREAMS + stream))
        store_tile(collapsed, [tile * TOKENS, column], o_tiles.index(stage))
        mbarrier.wait(w_full.index(0), turn & 1)
        for stream in gl.static_range(STREAMS):
            for part in gl.static_range(PARTS):
                weights = w_tiles.index((inner * STREAMS + stream) * PARTS + part)
                products = warpgroup_mma(
                    x_tiles.index(stage * STREAMS + stream), weights.permute((1, 0)), products,
                    is_async=True,
                )  # fmt: skip
        products = warpgroup_mma_wait(0, [products])
        tma.store_wait(0)
        thread_barrier()
        mbarrier.arrive(empty.index(stage), count=1)
    first = piece.to(gl.int64) * num_tokens + tile * TOKENS
    left = num_tokens - tile * TOKENS
    token = gl.arange(0, TOKENS, gl.SliceLayout(1, VALUES))
    gl.store(squares_ptr + first + token, gl.sum(squares, 1), mask=token < left)
    row = gl.arange(0, TOKENS, gl.SliceLayout(1, SUMS))
    fn_row = gl.arange(0, PADDED_ROWS, gl.SliceLayout(0, SUMS))
    place = row[:, None] * ROWS + fn_row[None, :]
    is_product = (row < left)[:, None] & (fn_row < ROWS)[None, :]
    gl.store(products_ptr + first * ROWS + place, products, mask=is_product)


@gluon.jit
def _four(ptr, tile, STRIDE: gl.constexpr, num_tokens):
    """The four numbers at ``ptr`` of each token of a tile, STRIDE apart: [TOKENS, 1] each."""
    token = tile * TOKENS + gl.arange(0, TOKENS, gl.SliceLayout(1, FOUR))
    place = token[:, None] * STRIDE + gl.arange(0, 4, gl.SliceLayout(0, FOUR))[None, :]
    numbers = gl.load(ptr + place, mask=(token < num_tokens)[:, None], other=0.0)
    even, odd = gl.split(gl.reshape(numbers, (TOKENS, 2, 2)))
    first, third = gl.split(even)
    second, fourth = gl.split(odd)
    return _column(first), _column(second), _column(third), _column(fourth)


@gluon.jit
def _column(numbers):
    layout: gl.constexpr = gl.SliceLayout(1, VALUES)
    return gl.convert_layout(numbers, layout, assert_trivial=True)[:, None]


@gluon.jit
def _mix_values(
    x_tiles, o_tiles, post, comb, pre, squares, stage, FIRST: gl.constexpr, EXPAND: gl.constexpr
):
    """Half of a unit: new streams and their collapse take the place of streams and output."""
    HALF: gl.constexpr = WIDTH // 2
    x0 = x_tiles.index(stage * STREAMS).slice(FIRST, HALF, 1).load(VALUES).to(gl.float32)
    x1 = x_tiles.index(stage * STREAMS + 1).slice(FIRST, HALF, 1).load(VALUES).to(gl.float32)
    x2 = x_tiles.index(stage * STREAMS + 2).slice(FIRST, HALF, 1).load(VALUES).to(gl.float32)
    x3 = x_tiles.index(stage * STREAMS + 3).slice(FIRST, HALF, 1).load(VALUES).to(gl.float32)
    x = (x0, x1, x2, x3)
    output = o_tiles.index(stage).slice(FIRST, HALF, 1)
    if EXPAND:
        added = output.load(VALUES).to(gl.float32)
    collapsed = gl.zeros([TOKENS, HALF], gl.float32, VALUES)
    for stream in gl.static_range(STREAMS):
        value = x[stream]
        if EXPAND:
            value = gl.zeros([TOKENS, HALF], gl.float32, VALUES)
            for origin in gl.static_range(STREAMS):
                value += comb[origin][stream] * x[origin]
            bits = (post[stream] * added + value).to(gl.bfloat16)
            x_tiles.index(stage * STREAMS + stream).slice(FIRST, HALF, 1).store(bits)
            value = bits.to(gl.float32)
        squares += value * value
        collapsed += pre[stream] * value
    output.store(collapsed.to(gl.bfloat16))
    return squares
