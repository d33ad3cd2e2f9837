"""The consumers of the Hopper attention kernel: scores, softmax and the sums of one query.

The left one weighs the even tiles of keys, the right one the odd tiles; each adds up its half of
the output's values over all tiles.  Weights go from one to the other through shared memory.
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

from deepinfer.kernels.gluon_names import seen_as

from .gluon_output import LOG2_E, LOWEST, SCORE_LAYOUT, SUM_LAYOUT, finish
from .gluon_work import (
    EMPTY,
    FULL,
    HALF,
    HEADS,
    QUERY_READ,
    QUERY_THERE,
    TILE,
    TILE_BF16,
    WEIGHTS,
    opaque_zero,
    pairs_of,
)


@gluon.jit
def consume(
    shared, outputs, num_items, SIDE: gl.constexpr, PIECES: gl.constexpr,
    PIECE_TILES: gl.constexpr, TOTAL_TILES: gl.constexpr, ROTARY: gl.constexpr,
    COPIES: gl.constexpr,
):  # fmt: skip
    """The half SIDE of the output of each item; weights of the even (0) or odd (1) tiles."""
    _, _, _, _, _, turns, barriers = shared
    sink_ptr, _, _, log2_scale, sinks = outputs
    sink = gl.load(sink_ptr + gl.arange(0, HEADS, gl.SliceLayout(1, SCORE_LAYOUT))) * LOG2_E
    # Needed at the end of an item only: two registers less.
    sinks.index(SIDE).store(sink)
    phase = 0
    query_phase = 0
    for item in range(gl.program_id(0), num_items, gl.num_programs(0)):
        num_pairs = pairs_of(item, PIECES, PIECE_TILES, TOTAL_TILES) + opaque_zero(item)
        sums = gl.zeros([HEADS, HALF], gl.float32, SUM_LAYOUT)
        highest = gl.full([HEADS], LOWEST, gl.float32, gl.SliceLayout(1, SCORE_LAYOUT))
        total = gl.zeros([HEADS], gl.float32, gl.SliceLayout(1, SCORE_LAYOUT))
        mbarrier.wait(barriers.index(QUERY_THERE), query_phase)
        for pair in range(num_pairs):
            is_last = pair == num_pairs - 1
            zero = opaque_zero(pair)
            if SIDE == 0:
                scores = _start_scores(shared, phase, zero, SIDE, COPIES)
                scores, own = _highest(shared, scores, is_last, log2_scale, 0, SIDE)
                even = _weigh(shared, scores, gl.maximum(highest, own), SIDE)
                sums, total = _add(shared, sums, total, highest, even, zero, 0, SIDE)
                sums = _release(shared, sums, 0, SIDE)
            else:
                if PIECE_TILES > 1:
                    scores = _start_scores(shared, phase, zero, SIDE, COPIES)
                    # Copied rows are there early, others would hold up the products below.
                    if COPIES:
                        scores, own = _highest(shared, scores, is_last, log2_scale, 0, SIDE)
                even = _weighed(shared, phase, 0)
                sums, total = _add(shared, sums, total, highest, even, zero, 0, SIDE)
                if PIECE_TILES > 1:
                    if not COPIES:
                        scores, own = _highest(shared, scores, is_last, log2_scale, 1, SIDE)
                    odd = _weigh(shared, scores, gl.maximum(even[0], own), SIDE)
                else:
                    mbarrier.arrive(barriers.index(QUERY_READ), count=1)
                sums = _release(shared, sums, 0, SIDE)
            highest = even[0]
            if PIECE_TILES > 1:
                if SIDE == 0:
                    odd = _weighed(shared, phase, 1)
                sums, total = _add(shared, sums, total, highest, odd, zero, 1, SIDE)
                sums = _release(shared, sums, 1, SIDE)
                highest = odd[0]
            phase ^= 1
        turn = turns.index(2 * query_phase), turns.index(2 * query_phase + 1)
        finish(sums, highest, total, sinks.index(SIDE), turn, item, outputs, SIDE, ROTARY, PIECES)
        query_phase ^= 1


@gluon.jit
def _start_scores(shared, phase, zero, SIDE: gl.constexpr, COPIES: gl.constexpr):
    """Starts Q K^T of this consumer's tile, [64 heads, 64 keys] f32, as its halves come."""
    queries, keys, _, _, _, _, barriers = shared
    left_right = seen_as(queries, gl.bfloat16, [2, HEADS, HALF], TILE_BF16)
    halves = seen_as(keys, gl.bfloat16, [4, TILE, HALF], TILE_BF16)
    scores = gl.zeros([HEADS, TILE], gl.float32, SCORE_LAYOUT)
    for half in gl.static_range(2):
        mbarrier.wait(barriers.index(FULL + 2 * SIDE + half), phase)
        if COPIES:
            fence_async_shared()
        scores = warpgroup_mma(
            left_right.index(zero + half), halves.index(zero + (2 * SIDE + half)).permute([1, 0]),
            scores, use_acc=half == 1, is_async=True,
        )  # fmt: skip
    return scores


@gluon.jit
def _highest(
    shared, scores, is_last, log2_scale, LATER: gl.constexpr, SIDE: gl.constexpr
):  # fmt: skip
    """Waits for the scores of this consumer's tile; returns them scaled, and the highest of each
    head.  LATER products were started after them."""
    _, _, _, biases, _, _, barriers = shared
    scores = warpgroup_mma_wait(LATER, [scores])
    if is_last:
        mbarrier.arrive(barriers.index(QUERY_READ), count=1)
    bias = biases.index(SIDE).load(gl.SliceLayout(0, SCORE_LAYOUT)).to(gl.float32)
    scores = scores * log2_scale + bias[None, :]
    return scores, gl.max(scores, 1)


@gluon.jit
def _weigh(shared, scores, highest, SIDE: gl.constexpr):
    """Weights of this consumer's tile, for both: returns the maximum so far and their sum.

    On the right, products of the even tile still run meanwhile.
    """
    _, _, weights, _, states, _, barriers = shared
    parts = gl.exp2(scores - highest[:, None])
    part_total = gl.sum(parts, 1)
    weights.index(SIDE).store(parts.to(gl.bfloat16))
    states.index(2 * SIDE).store(highest)
    states.index(2 * SIDE + 1).store(part_total)
    fence_async_shared()
    mbarrier.arrive(barriers.index(WEIGHTS + SIDE), count=1)
    return highest, part_total


@gluon.jit
def _weighed(shared, phase, OTHER: gl.constexpr):
    """What ``_weigh`` of the other consumer returned."""
    _, _, _, _, states, _, barriers = shared
    mbarrier.wait(barriers.index(WEIGHTS + OTHER), phase)
    highest = states.index(2 * OTHER).load(gl.SliceLayout(1, SCORE_LAYOUT))
    return highest, states.index(2 * OTHER + 1).load(gl.SliceLayout(1, SCORE_LAYOUT))


@gluon.jit
def _add(shared, sums, total, before, weighed, zero, SLOT: gl.constexpr, SIDE: gl.constexpr):
    """Starts P V of a tile; ``before`` is the maximum that sums and total are relative to."""
    _, keys, weights, _, _, _, _ = shared
    highest, part_total = weighed
    decay = gl.exp2(before - highest)
    total = total * decay + part_total
    decay = gl.convert_layout(decay, gl.SliceLayout(1, SUM_LAYOUT), assert_trivial=True)
    halves = seen_as(keys, gl.bfloat16, [4, TILE, HALF], TILE_BF16)
    sums = warpgroup_mma(
        weights.index(zero + SLOT),
        halves.index(zero + (2 * SLOT + SIDE)),
        sums * decay[:, None],
        is_async=True,
    )
    return sums, total


@gluon.jit
def _release(shared, sums, SLOT: gl.constexpr, SIDE: gl.constexpr):
    """Waits for the products of a tile; then its half may be filled anew."""
    sums = warpgroup_mma_wait(0, [sums])
    mbarrier.arrive(shared[6].index(EMPTY + 2 * SLOT + SIDE), count=1)
    return sums
