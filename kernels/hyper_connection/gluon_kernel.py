"""Hyper-connections on NVIDIA SM90, in Gluon: expand, collapse and mix in one pass.

A program has a slice of the width, STEPS times 32 columns of each stream, whose mixing weights stay
in shared memory, and loops over tiles of 64 tokens (16 if there are few tokens: more programs share
them, and steps are shorter).  The programs of all slices process the same tokens at about the same
time, and synchronize if there are many tiles, so that they access whole rows of memory.  A producer
warp loads 32 columns at a time by TMA; two consumer warpgroups alternate between tiles.  They
overwrite the streams in shared memory with the new ones, which TMA stores and the MMAs read.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents

from deepinfer.kernels.gemm.gluon_pipeline import barriers
from deepinfer.kernels.gluon_names import store_tile, thread_barrier

from .gluon_producer import (
    PADDED_ROWS,
    PARTS,
    ROWS,
    STREAMS,
    TOKENS,
    WIDTH,
    first_column,
    num_tiles,
    produce,
)
from .gluon_values import four_of_tokens, mix_values, values_layout

# Layout in which the squares of a token are summed, in the same order for any tile.
ADDED = gl.constexpr(gl.BlockedLayout([1, 16], [16, 2], [4, 1], [0, 1]))
SUMS = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 32, 16]))


# Sizes that depend on the batch must not cause recompilation.
@gluon.jit(do_not_specialize=["num_tokens"])
def advance_kernel(
    x, added, fn, expanded, collapsed, post, comb, pre, products, squares, counters, num_tokens, D,
    EXPAND: gl.constexpr, STEPS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Outputs for streams x [T, 4 D] bf16: expanded [T, 4 D] and collapsed [T, D] bf16; for each
    slice of STEPS x 32 columns the dot products with fn [3 x 24, 4 D] (three bf16 terms)
    [slices, T, 24] and the sums of squares [slices, T], f32.  TMA boxes of x have the rows of a
    tile."""
    if x.block_type.shape[0] < TOKENS:
        gdc_launch_dependents()  # there are idle SMs: the next kernel may wait on the device
    # One buffer per stream, so that a write to one does not wait for reads of others.
    x_tiles = (
        gl.allocate_shared_memory(gl.bfloat16, [STAGES, TOKENS, WIDTH], x.layout),
        gl.allocate_shared_memory(gl.bfloat16, [STAGES, TOKENS, WIDTH], x.layout),
        gl.allocate_shared_memory(gl.bfloat16, [STAGES, TOKENS, WIDTH], x.layout),
        gl.allocate_shared_memory(gl.bfloat16, [STAGES, TOKENS, WIDTH], x.layout),
    )
    o_tiles = gl.allocate_shared_memory(gl.bfloat16, [STAGES, TOKENS, WIDTH], added.layout)
    w_tiles = gl.allocate_shared_memory(
        gl.bfloat16, [STEPS * STREAMS * PARTS, PADDED_ROWS, WIDTH], fn.layout
    )
    # Twice as many full barriers as stages: the previous step on a barrier is then known to be
    # complete, whichever warpgroup it was for.  With one per stage a wait could pass too early.
    full, _ = barriers(2 * STAGES, 1, 1)
    _, empty = barriers(STAGES, 1, 1)
    ready, _ = barriers(STEPS, 1, 1)
    fence_async_shared()
    memory = (x_tiles, o_tiles, w_tiles, full, empty, ready)
    results = (expanded, collapsed, products, squares)
    coefficients = (post, comb, pre)
    gl.warp_specialize(
        [
            (_advance_even, (memory, coefficients, results, num_tokens, D, EXPAND)),
            (_advance_odd, (memory, coefficients, results, num_tokens, D, EXPAND)),
            (produce, (x, added, fn, memory, counters, num_tokens, D, EXPAND)),
        ],
        [4, 1],
        [216, 24],
    )


@gluon.jit
def _advance_even(memory, coefficients, results, num_tokens, D, EXPAND: gl.constexpr):
    _advance(memory, coefficients, results, num_tokens, D, EXPAND, 0)


@gluon.jit
def _advance_odd(memory, coefficients, results, num_tokens, D, EXPAND: gl.constexpr):
    _advance(memory, coefficients, results, num_tokens, D, EXPAND, 1)


@gluon.jit
def _advance(
    memory, coefficients, results, num_tokens, D, EXPAND: gl.constexpr, WHICH: gl.constexpr
):
    """Every second tile of this program."""
    count = num_tiles(num_tokens, results[0].block_type.shape[0])
    for index in range(WHICH, count, 2):
        in_turn = gl.minimum(count - index + WHICH, 2)
        _tile(memory, coefficients, results, num_tokens, D, index, in_turn, WHICH, EXPAND)
    tma.store_wait(0)


@gluon.jit
def _tile(
    memory, coefficients, results, num_tokens, D, index, in_turn, WHICH: gl.constexpr,
    EXPAND: gl.constexpr,
):  # fmt: skip
    x_tiles, o_tiles, w_tiles, full, empty, ready = memory
    post, comb, pre = coefficients
    expanded, collapsed, products_ptr, squares_ptr = results
    STAGES: gl.constexpr = empty.shape[0]
    STEPS: gl.constexpr = w_tiles.shape[0] // (STREAMS * PARTS)
    TILE: gl.constexpr = expanded.block_type.shape[0]
    tile = gl.program_id(1) + index * gl.num_programs(1)
    kept = four_of_tokens(pre, tile, STREAMS, num_tokens, TILE)
    factors = kept
    mixed = (kept, kept, kept, kept)
    if EXPAND:
        factors = four_of_tokens(post, tile, STREAMS, num_tokens, TILE)
        mixed = (
            four_of_tokens(comb, tile, STREAMS * STREAMS, num_tokens, TILE),
            four_of_tokens(comb + 4, tile, STREAMS * STREAMS, num_tokens, TILE),
            four_of_tokens(comb + 8, tile, STREAMS * STREAMS, num_tokens, TILE),
            four_of_tokens(comb + 12, tile, STREAMS * STREAMS, num_tokens, TILE),
        )
    squares = gl.zeros([TILE, WIDTH], gl.float32, values_layout(TILE))
    products = gl.zeros([TOKENS, PADDED_ROWS], gl.float32, SUMS)
    # With few tokens latency matters, not bandwidth: a stage is released only after the streams of
    # the next step have been mixed.
    LATE: gl.constexpr = TILE < TOKENS
    if LATE:
        products = warpgroup_mma_init(products)
    first_step = (index - WHICH) * STEPS + WHICH
    for inner in range(STEPS):
        step = first_step + inner * in_turn
        stage = step % STAGES
        column = first_column(inner)
        mbarrier.wait(full.index(step % (2 * STAGES)), (step // (2 * STAGES)) & 1)
        output = o_tiles.index(stage).slice(0, TILE)
        values = (
            x_tiles[0].index(stage).slice(0, TILE),
            x_tiles[1].index(stage).slice(0, TILE),
            x_tiles[2].index(stage).slice(0, TILE),
            x_tiles[3].index(stage).slice(0, TILE),
        )
        squares = mix_values(values, output, factors, mixed, kept, squares, EXPAND)
        fence_async_shared()
        if LATE:
            products = _wait_used(products)
        thread_barrier()
        if LATE:
            mbarrier.arrive(empty.index((step + STAGES - in_turn) % STAGES), pred=inner > 0)
        if EXPAND:
            for stream in gl.static_range(STREAMS):
                store_tile(expanded, [tile * TILE, stream * D + column], values[stream])
        store_tile(collapsed, [tile * TILE, column], output)
        mbarrier.wait(ready.index(inner), 0)
        for stream in gl.static_range(STREAMS):
            for part in gl.static_range(PARTS):
                weights = w_tiles.index((inner * STREAMS + stream) * PARTS + part)
                products = warpgroup_mma(
                    x_tiles[stream].index(stage), weights.permute((1, 0)), products,
                    is_async=True,
                )  # fmt: skip
        if not LATE:
            products = _wait_used(products)
            thread_barrier()
            mbarrier.arrive(empty.index(stage))
    if LATE:
        products = _wait_used(products)
        thread_barrier()
        mbarrier.arrive(empty.index((first_step + (STEPS - 1) * in_turn) % STAGES))
    first = gl.program_id(0).to(gl.int64) * num_tokens + tile * TILE
    left = gl.minimum(num_tokens - tile * TILE, TILE)
    # The next kernel reads these sums soon: they should stay in L2 longer than the streams.
    token = gl.arange(0, TILE, gl.SliceLayout(1, ADDED))
    square = gl.sum(gl.convert_layout(squares, ADDED), 1)
    gl.store(squares_ptr + first + token, square, mask=token < left, eviction_policy="evict_last")
    row = gl.arange(0, TOKENS, gl.SliceLayout(1, SUMS))
    fn_row = gl.arange(0, PADDED_ROWS, gl.SliceLayout(0, SUMS))
    place = products_ptr + first * ROWS + (row[:, None] * ROWS + fn_row[None, :])
    is_product = (row < left)[:, None] & (fn_row < ROWS)[None, :]
    gl.store(place, products, mask=is_product, eviction_policy="evict_last")


@gluon.jit
def _wait_used(products):
    """Wait until MMAs and TMA have read the shared memory of the warpgroup's last step."""
    products = warpgroup_mma_wait(0, [products])
    tma.store_wait(0)
    return products
