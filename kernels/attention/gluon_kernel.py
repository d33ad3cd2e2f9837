"""Sparse latent attention for Hopper in Gluon (Triton's lower-level language).

One block of threads works on one query (64 heads x 512 values) and a run of its key tiles.  Three
groups of warps share it:

* the producer gathers packed rows, makes bf16 of them and fills two tiles of 64 keys;
* the left consumer computes the scores of even tiles, the right one those of odd tiles;
* each consumer sums its half of the 256 + 256 output values over all tiles.  It hands its weights,
  their sums and the running maximum to the other one through shared memory.

So one consumer's softmax runs while the other one multiplies, and Q is read once per tile.
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
from triton.language.extra.cuda import gdc_launch_dependents

from deepinfer.kernels.gluon_names import seen_as

from .gluon_output import LOWEST, SCORE_LAYOUT, SUM_LAYOUT, finish
from .gluon_producer import produce
from .gluon_work import HALF, HEADS, TILE, WIDTH, pairs_of

TILE_BF16 = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))
VECTOR = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))
BARRIER = gl.constexpr(mbarrier.MBarrierLayout())


@gluon.jit(do_not_specialize=["num_queries"])
def attention_gluon_kernel(
    q_ptr, window_ptr, window_index_ptr, main_ptr, main_index_ptr, sink_ptr, cos_ptr, sin_ptr,
    out_ptr, state_ptr, log2_scale, num_queries,
    PIECES: gl.constexpr, PIECE_TILES: gl.constexpr, WINDOW_LENGTH: gl.constexpr,
    MAIN_LENGTH: gl.constexpr, ROTARY: gl.constexpr,
):  # fmt: skip
    if PIECES > 1:
        # The kernel that adds the pieces may be launched now; it waits for what this one writes.
        gdc_launch_dependents()
    queries = gl.allocate_shared_memory(gl.bfloat16, [1, HEADS, WIDTH], TILE_BF16)
    keys = gl.allocate_shared_memory(gl.bfloat16, [2, TILE, WIDTH], TILE_BF16)
    weights = gl.allocate_shared_memory(gl.bfloat16, [2, HEADS, TILE], TILE_BF16)
    biases = gl.allocate_shared_memory(gl.bfloat16, [2, TILE], VECTOR)
    states = gl.allocate_shared_memory(gl.float32, [4, HEADS], VECTOR)
    barriers = gl.allocate_shared_memory(gl.int64, [8, 1], BARRIER)
    # 0, 1: tile full; 2, 3: tile empty; 4, 5: weights there; 6: queries there; 7: queries read
    for barrier in gl.static_range(8):
        mbarrier.init(barriers.index(barrier), count=2 if barrier // 2 == 1 or barrier == 7 else 1)
    shared = (queries, keys, weights, biases, states, barriers)
    num_items = num_queries * PIECES
    window_tiles: gl.constexpr = (WINDOW_LENGTH + TILE - 1) // TILE
    total_tiles: gl.constexpr = window_tiles + (MAIN_LENGTH + TILE - 1) // TILE
    outputs = (sink_ptr, cos_ptr, sin_ptr, out_ptr, state_ptr, log2_scale)
    sources = (q_ptr, window_ptr, window_index_ptr, main_ptr, main_index_ptr, cos_ptr, sin_ptr)
    gl.warp_specialize(
        [
            (
                produce,
                (
                    shared, sources, num_items, PIECES, PIECE_TILES, WINDOW_LENGTH, MAIN_LENGTH,
                    ROTARY,
                ),
            ),
            (
                _left_consumer,
                (shared, outputs, num_items, PIECES, PIECE_TILES, total_tiles, ROTARY),
            ),
            (
                _right_consumer,
                (shared, outputs, num_items, PIECES, PIECE_TILES, total_tiles, ROTARY),
            ),
        ],
        [4, 4],
        # 120 are left for the producer.  With fewer the consumers spill 32 registers.
        [192, 192],
    )  # fmt: skip


@gluon.jit
def _zero(x):
    """0, which the compiler cannot know: what depends on it stays inside the loop.

    It would compute the matrix descriptors of a loop before it and spill them, or unroll the loop.
    """
    return gl.inline_asm_elementwise(
        "mov.b32 $0, 0;", "=r,r", [x], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def _scores(queries, keys, slot, zero):
    """Starts Q K^T of one tile, [64 heads, 64 keys] f32."""
    scores = gl.zeros([HEADS, TILE], gl.float32, SCORE_LAYOUT)
    return warpgroup_mma(
        queries.index(zero), keys.index(zero + slot).permute([1, 0]), scores,
        use_acc=False, is_async=True,
    )  # fmt: skip


@gluon.jit
def _decay(sums, old, new):
    factor = gl.convert_layout(
        gl.exp2(old - new), gl.SliceLayout(1, SUM_LAYOUT), assert_trivial=True
    )
    return sums * factor[:, None]


@gluon.jit
def _left_consumer(
    shared, outputs, num_items, PIECES: gl.constexpr, PIECE_TILES: gl.constexpr,
    TOTAL_TILES: gl.constexpr, ROTARY: gl.constexpr,
):  # fmt: skip
    _consume(shared, outputs, num_items, 0, PIECES, PIECE_TILES, TOTAL_TILES, ROTARY)


@gluon.jit
def _right_consumer(
    shared, outputs, num_items, PIECES: gl.constexpr, PIECE_TILES: gl.constexpr,
    TOTAL_TILES: gl.constexpr, ROTARY: gl.constexpr,
):  # fmt: skip
    _consume(shared, outputs, num_items, 1, PIECES, PIECE_TILES, TOTAL_TILES, ROTARY)


@gluon.jit
def _consume(
    shared, outputs, num_items, SIDE: gl.constexpr, PIECES: gl.constexpr,
    PIECE_TILES: gl.constexpr, TOTAL_TILES: gl.constexpr, ROTARY: gl.constexpr,
):  # fmt: skip
    """The half SIDE of the output of each item; scores of the even (0) or odd (1) tiles."""
    barriers = shared[5]
    phase = 0
    query_phase = 0
    for item in range(gl.program_id(0), num_items, gl.num_programs(0)):
        num_pairs = pairs_of(item, PIECES, PIECE_TILES, TOTAL_TILES) + _zero(item)
        sums = gl.zeros([HEADS, HALF], gl.float32, SUM_LAYOUT)
        highest = gl.full([HEADS], LOWEST, gl.float32, gl.SliceLayout(1, SCORE_LAYOUT))
        total = gl.zeros([HEADS], gl.float32, gl.SliceLayout(1, SCORE_LAYOUT))
        mbarrier.wait(barriers.index(6), query_phase)
        for pair in range(num_pairs):
            is_last = pair == num_pairs - 1
            zero = _zero(pair)
            state = (sums, highest, total)
            if SIDE == 0:
                state = _own_tile(shared, state, phase, zero, is_last, outputs[5], SIDE)
                if PIECE_TILES > 1:
                    state = _other_tile(shared, state, phase, zero, SIDE)
            else:
                state = _other_tile(shared, state, phase, zero, SIDE)
                if PIECE_TILES > 1:
                    state = _own_tile(shared, state, phase, zero, is_last, outputs[5], SIDE)
            sums, highest, total = state
            sums = warpgroup_mma_wait(0, [sums])
            if PIECE_TILES > 1:
                mbarrier.arrive(barriers.index(3), count=1)
            elif SIDE == 1:
                mbarrier.arrive(barriers.index(2), count=1)
                mbarrier.arrive(barriers.index(7), count=1)
            phase ^= 1
        query_phase ^= 1
        finish(sums, highest, total, item, outputs, SIDE, ROTARY, PIECES)


@gluon.jit
def _own_tile(shared, state, phase, zero, is_last, log2_scale, SIDE: gl.constexpr):
    """Scores and weights of this consumer's tile, handed to the other one, and its products.

    On the right, products of the other's tile still run: they fill the wait for the scores.
    """
    queries, keys, weights, biases, states, barriers = shared
    sums, before, total = state
    mbarrier.wait(barriers.index(SIDE), phase)
    scores = _scores(queries, keys, SIDE, zero)
    if SIDE == 1:
        sums = warpgroup_mma_wait(1, [sums])
        mbarrier.arrive(barriers.index(2), count=1)
    scores = warpgroup_mma_wait(0, [scores])
    if is_last:
        mbarrier.arrive(barriers.index(7), count=1)
    bias = biases.index(SIDE).load(gl.SliceLayout(0, SCORE_LAYOUT)).to(gl.float32)
    scores = scores * log2_scale + bias[None, :]
    highest = gl.maximum(before, gl.max(scores, 1))
    parts = gl.exp2(scores - highest[:, None])
    part_total = gl.sum(parts, 1)
    weights.index(SIDE).store(parts.to(gl.bfloat16))
    states.index(2 * SIDE).store(highest)
    states.index(2 * SIDE + 1).store(part_total)
    fence_async_shared()
    mbarrier.arrive(barriers.index(4 + SIDE), count=1)
    total = total * gl.exp2(before - highest) + part_total
    sums = _decay(sums, before, highest)
    sums = _products(weights, keys, sums, zero, SIDE, SIDE)
    sums = warpgroup_mma_wait(0, [sums])
    if SIDE == 0:
        mbarrier.arrive(barriers.index(2), count=1)
    return sums, highest, total


@gluon.jit
def _other_tile(shared, state, phase, zero, SIDE: gl.constexpr):
    """Starts the products with the weights that the other consumer made of its tile."""
    queries, keys, weights, biases, states, barriers = shared
    sums, before, total = state
    OTHER: gl.constexpr = 1 - SIDE
    mbarrier.wait(barriers.index(4 + OTHER), phase)
    highest = states.index(2 * OTHER).load(gl.SliceLayout(1, SCORE_LAYOUT))
    part_total = states.index(2 * OTHER + 1).load(gl.SliceLayout(1, SCORE_LAYOUT))
    total = total * gl.exp2(before - highest) + part_total
    return (
        _products(weights, keys, _decay(sums, before, highest), zero, OTHER, SIDE),
        highest,
        total,
    )


@gluon.jit
def _products(weights, keys, sums, zero, TILE_SLOT: gl.constexpr, SIDE: gl.constexpr):
    """Starts P V of a tile and one half of its values."""
    halves = seen_as(keys, gl.bfloat16, [4, TILE, HALF], TILE_BF16)
    return warpgroup_mma(
        weights.index(zero + TILE_SLOT), halves.index(zero + (2 * TILE_SLOT + SIDE)), sums,
        is_async=True,
    )  # fmt: skip
