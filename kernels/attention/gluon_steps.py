"""Steps of both consumers of the Hopper attention kernel for a tile: scores, P, and P V."""

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

from .gluon_output import SCORE_LAYOUT, SUM_LAYOUT
from .gluon_work import (
    EMPTY,
    FACTORS,
    FULL,
    HALF,
    HEADS,
    QUERY_PREPARED,
    QUERY_READ,
    TILE,
    TILE_BF16,
    WEIGHTS,
)


@gluon.jit
def start_scores(
    shared, phase, zero, prepared, SIDE: gl.constexpr, PREPARED: gl.constexpr, COPIES: gl.constexpr
):  # fmt: skip
    """Issue Q K^T of this consumer's tile, [64 heads, 64 keys] f32, as its halves arrive.

    ``prepared``: the phase of the barrier of the prepared query, and whether to wait for it; used
    by the left consumer, which starts with the half that is not rotated.
    """
    queries, keys, _, _, _, _, barriers = shared
    left_right = seen_as(queries, gl.bfloat16, [2, HEADS, HALF], TILE_BF16)
    halves = seen_as(keys, gl.bfloat16, [4, TILE, HALF], TILE_BF16)
    scores = gl.zeros([HEADS, TILE], gl.float32, SCORE_LAYOUT)
    for half in gl.static_range(2):
        mbarrier.wait(barriers.index(FULL + 2 * SIDE + half), phase)
        if COPIES:
            fence_async_shared()
        if half == 1 and SIDE == 0 and PREPARED:
            query_phase, is_unknown = prepared
            mbarrier.wait(barriers.index(QUERY_PREPARED), query_phase, pred=is_unknown)
        scores = warpgroup_mma(
            left_right.index(zero + half), halves.index(zero + (2 * SIDE + half)).permute([1, 0]),
            scores, use_acc=half == 1, is_async=True,
        )  # fmt: skip
    return scores


@gluon.jit
def find_highest(
    shared, scores, is_last, log2_scale, SIDE: gl.constexpr, NORM: gl.constexpr
):  # fmt: skip
    """Wait for the scores of this consumer's tile; returns them scaled, and the maximum per
    head."""
    _, _, _, biases, states, _, barriers = shared
    if NORM:
        log2_scale = states.index(FACTORS).load(gl.SliceLayout(1, SCORE_LAYOUT))[:, None]
    scores = warpgroup_mma_wait(0, [scores])
    if is_last:
        mbarrier.arrive(barriers.index(QUERY_READ), count=1)
    bias = biases.index(SIDE).load(gl.SliceLayout(0, SCORE_LAYOUT)).to(gl.float32)
    scores = scores * log2_scale + bias[None, :]
    return scores, gl.max(scores, 1)


@gluon.jit
def weigh(shared, scores, highest, SIDE: gl.constexpr):
    """Compute P of this consumer's tile and share it with the other consumer.

    Returns the running maximum, the row sums of P, and P as left MMA operand in registers; the
    other consumer reads it from shared memory.
    """
    _, _, weights, _, states, _, barriers = shared
    parts = gl.exp2(scores - highest[:, None])
    part_total = gl.sum(parts, 1)
    parts = parts.to(gl.bfloat16)
    weights.index(SIDE).store(parts)
    states.index(2 * SIDE).store(highest)
    states.index(2 * SIDE + 1).store(part_total)
    fence_async_shared()
    mbarrier.arrive(barriers.index(WEIGHTS + SIDE), count=1)
    own = gl.convert_layout(parts, gl.DotOperandLayout(0, SUM_LAYOUT, 2), assert_trivial=True)
    return highest, part_total, own


@gluon.jit
def weighed(shared, phase, OTHER: gl.constexpr):
    """The result of the other consumer's ``weigh``; its P is in buffer OTHER."""
    _, _, _, _, states, _, barriers = shared
    mbarrier.wait(barriers.index(WEIGHTS + OTHER), phase)
    highest = states.index(2 * OTHER).load(gl.SliceLayout(1, SCORE_LAYOUT))
    part_total = states.index(2 * OTHER + 1).load(gl.SliceLayout(1, SCORE_LAYOUT))
    return highest, part_total, OTHER


@gluon.jit
def add(shared, sums, total, before, weighed, zero, SLOT: gl.constexpr, SIDE: gl.constexpr):
    """Rescale the accumulators from the maximum ``before`` to the new one, and issue P V of a
    tile."""
    _, keys, weights, _, _, _, _ = shared
    highest, part_total, operand = weighed
    if SIDE != SLOT:
        operand = weights.index(zero + SLOT)
    decay = gl.exp2(before - highest)
    total = total * decay + part_total
    decay = gl.convert_layout(decay, gl.SliceLayout(1, SUM_LAYOUT), assert_trivial=True)
    halves = seen_as(keys, gl.bfloat16, [4, TILE, HALF], TILE_BF16)
    sums = warpgroup_mma(
        operand,
        halves.index(zero + (2 * SLOT + SIDE)),
        sums * decay[:, None],
        is_async=True,
    )
    return sums, total


@gluon.jit
def release(shared, sums, SLOT: gl.constexpr, SIDE: gl.constexpr, is_free):
    """Wait for P V of a tile, then release its half of the buffer."""
    sums = warpgroup_mma_wait(0, [sums])
    mbarrier.arrive(shared[6].index(EMPTY + 2 * SLOT + SIDE), count=1, pred=is_free)
    return sums
