"""Consumer warpgroups of the Hopper attention kernel: scores, softmax and P V of one query.

The left one computes P of even tiles of keys, the right one of odd tiles; each accumulates its half
of the output columns over all tiles.  They exchange P through shared memory.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from .gluon_output import LOG2_E, LOWEST, SCORE_LAYOUT, SUM_LAYOUT, await_store, finish
from .gluon_query import norm_query, rotation, turn_query
from .gluon_steps import add, find_highest, release, start_scores, weigh, weighed
from .gluon_work import HALF, HEADS, QUERY_PREPARED, QUERY_READ, QUERY_THERE, opaque_zero, pairs_of


@gluon.jit
def consume_left(
    shared, outputs, num_items, PIECES: gl.constexpr, PIECE_TILES: gl.constexpr,
    TOTAL_TILES: gl.constexpr, ROTARY: gl.constexpr, COPIES: gl.constexpr,
):  # fmt: skip
    """Computes the left half of the output of each item, and P of even tiles."""
    barriers = shared[6]
    log2_scale, q_norm_eps = outputs[5], outputs[9]
    NORM: gl.constexpr = q_norm_eps is not None
    PREPARED: gl.constexpr = NORM or ROTARY > 0
    _keep_sinks(outputs, 0)
    phase = 0
    query_phase = 0
    for item in range(gl.program_id(0), num_items, gl.num_programs(0)):
        num_pairs = pairs_of(item, PIECES, PIECE_TILES, TOTAL_TILES) + opaque_zero(item)
        sums, highest, total = _nothing()
        mbarrier.wait(barriers.index(QUERY_THERE), query_phase)
        for pair in range(num_pairs):
            is_last = pair == num_pairs - 1
            zero = opaque_zero(pair)
            prepared = (query_phase, pair == 0)
            scores = start_scores(shared, phase, zero, prepared, 0, PREPARED, COPIES)
            await_store(barriers, (pair == 0) & (item >= gl.num_programs(0)), 0, PIECE_TILES)
            scores, own = find_highest(shared, scores, is_last, log2_scale, 0, NORM)
            even = weigh(shared, scores, gl.maximum(highest, own), 0)
            sums, total = add(shared, sums, total, highest, even, zero, 0, 0)
            sums = release(shared, sums, 0, 0, True)
            highest = even[0]
            if PIECE_TILES > 1:
                odd = weighed(shared, phase, 1)
                sums, total = add(shared, sums, total, highest, odd, zero, 1, 0)
                # The last buffer is reused for the results.
                sums = release(shared, sums, 1, 0, pair < num_pairs - 1)
                highest = odd[0]
            phase ^= 1
        finish(sums, highest, total, item, outputs, shared, 0, ROTARY, PIECES)
        query_phase ^= 1
    tma.store_wait(0)


@gluon.jit
def consume_right(
    shared, outputs, num_items, PIECES: gl.constexpr, PIECE_TILES: gl.constexpr,
    TOTAL_TILES: gl.constexpr, ROTARY: gl.constexpr, COPIES: gl.constexpr,
):  # fmt: skip
    """Computes the right half of the output of each item, P of odd tiles, and prepares queries."""
    barriers = shared[6]
    log2_scale, q_norm_eps = outputs[5], outputs[9]
    NORM: gl.constexpr = q_norm_eps is not None
    PREPARED: gl.constexpr = NORM or ROTARY > 0
    _keep_sinks(outputs, 1)
    phase = 0
    query_phase = 0
    for item in range(gl.program_id(0), num_items, gl.num_programs(0)):
        num_pairs = pairs_of(item, PIECES, PIECE_TILES, TOTAL_TILES) + opaque_zero(item)
        sums, highest, total = _nothing()
        if NORM:
            norm_query(shared, log2_scale, q_norm_eps, query_phase)
        if ROTARY > 0:
            cos, sin = rotation(outputs[1], outputs[2], item // PIECES, ROTARY)
            turn_query(shared, cos, sin, query_phase)
        else:
            mbarrier.wait(barriers.index(QUERY_THERE), query_phase)
        if PREPARED:
            mbarrier.arrive(barriers.index(QUERY_PREPARED), count=1)
        await_store(barriers, item >= gl.num_programs(0), 1, PIECE_TILES)
        # The first odd tile arrives late, and so do all decoded tiles: P V of the even tile must
        # not wait for its scores.  Later tiles that are only copied arrive early.
        for EARLY in gl.static_range(2 if COPIES else 1):
            for pair in range(EARLY, 1 if COPIES and not EARLY else num_pairs):
                is_last = pair == num_pairs - 1
                zero = opaque_zero(pair)
                if EARLY:
                    scores = start_scores(shared, phase, zero, (0, False), 1, PREPARED, COPIES)
                    scores, own = find_highest(shared, scores, is_last, log2_scale, 1, NORM)
                even = weighed(shared, phase, 0)
                sums, total = add(shared, sums, total, highest, even, zero, 0, 1)
                if PIECE_TILES > 1:
                    if not EARLY:
                        sums = release(shared, sums, 0, 1, True)
                        scores = start_scores(shared, phase, zero, (0, False), 1, PREPARED, COPIES)
                        scores, own = find_highest(shared, scores, is_last, log2_scale, 1, NORM)
                    odd = weigh(shared, scores, gl.maximum(even[0], own), 1)
                    if EARLY:
                        sums = release(shared, sums, 0, 1, True)
                    sums, total = add(shared, sums, total, even[0], odd, zero, 1, 1)
                    sums = release(shared, sums, 1, 1, pair < num_pairs - 1)
                    highest = odd[0]
                else:
                    mbarrier.arrive(barriers.index(QUERY_READ), count=1)
                    sums = release(shared, sums, 0, 1, True)
                    highest = even[0]
                phase ^= 1
        finish(sums, highest, total, item, outputs, shared, 1, ROTARY, PIECES)
        query_phase ^= 1
    tma.store_wait(0)


@gluon.jit
def _keep_sinks(outputs, SIDE: gl.constexpr):
    """Keep sinks in shared memory until the end of an item, which saves two registers."""
    sink = gl.load(outputs[0] + gl.arange(0, HEADS, gl.SliceLayout(1, SCORE_LAYOUT)))
    outputs[6].index(SIDE).store(sink * LOG2_E)


@gluon.jit
def _nothing():
    """Initial accumulators, maxima and denominators."""
    sums = gl.zeros([HEADS, HALF], gl.float32, SUM_LAYOUT)
    highest = gl.full([HEADS], LOWEST, gl.float32, gl.SliceLayout(1, SCORE_LAYOUT))
    return sums, highest, gl.zeros([HEADS], gl.float32, gl.SliceLayout(1, SCORE_LAYOUT))
