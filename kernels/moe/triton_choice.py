"""Expert selection in Triton: top-k of a token's scores, one program of one warp per token.

All scores stay in the warp's registers.  On a GPU there is a fast path: the best two of each of the
32 lanes nearly always contain the top k.  The K-th largest of these 64 is a threshold, and if
exactly K scores reach it, they are the top k.  If more do (ties, or three in one lane), experts are
selected one by one.  Both ways give the same result.
"""

from __future__ import annotations

import triton
import triton.language as tl

_LEAST = tl.constexpr(-(2**31))
_NO_EXPERT = tl.constexpr(2**30)


@triton.jit(do_not_specialize=["num_rows"])
def choice_kernel(
    logits, bias, ids, weights, slots, totals, bias_stride, num_rows, num_experts, scaling_factor,
    TOP_K: tl.constexpr, TOP_K_PADDED: tl.constexpr, FIRST: tl.constexpr, REST: tl.constexpr,
    PARTS: tl.constexpr, NORMALIZE: tl.constexpr, IS_GPU: tl.constexpr, IS_FULL: tl.constexpr,
    SLOTS: tl.constexpr,
):  # fmt: skip
    """logits are split-K partial sums [num_rows, PARTS, num_experts].  One program per row, the
    last rows first, which the router GEMM has just written.

    Not IS_GPU: scores of the selected experts are kept instead of recomputed, since Ascend's
    compiler aborts on loads with data-dependent addresses; and there is no fast path.
    SLOTS: each pair also takes the next slot of its expert, counted in ``totals``.
    """
    row = num_rows - 1 - tl.program_id(0).to(tl.int64)
    logits += row * PARTS * num_experts
    chosen, place, score, other_score = choose(
        logits, bias + row * bias_stride, num_experts,
        TOP_K, TOP_K_PADDED, FIRST, REST, PARTS, IS_GPU, IS_FULL,
    )  # fmt: skip
    is_choice = tl.arange(0, TOP_K_PADDED) < TOP_K
    pair = row * TOP_K + place
    if SLOTS:
        slot = tl.atomic_add(totals + chosen, 1, mask=is_choice, sem="relaxed")
        tl.store(slots + pair, slot, mask=is_choice)
    weight = weigh(logits, chosen, score, other_score, num_experts, TOP_K, PARTS, NORMALIZE, IS_GPU)
    tl.store(ids + pair, chosen.to(tl.int64), mask=is_choice)
    tl.store(weights + pair, weight * scaling_factor, mask=is_choice)


@triton.jit
def choose(
    logits, bias, num_experts,
    TOP_K: tl.constexpr, TOP_K_PADDED: tl.constexpr, FIRST: tl.constexpr, REST: tl.constexpr,
    PARTS: tl.constexpr, IS_GPU: tl.constexpr, IS_FULL: tl.constexpr,
):  # fmt: skip
    """The selected experts of a token and the rank of each by id, [TOP_K_PADDED], of which TOP_K
    are valid; and the scores of the first FIRST and of the other experts, for ``weigh``."""
    expert = tl.arange(0, FIRST)
    other = FIRST + tl.arange(0, REST)
    slot = tl.arange(0, TOP_K_PADDED)
    score = _score(logits, expert, num_experts, PARTS, IS_FULL)
    other_score = _score(logits, other, num_experts, PARTS, IS_FULL)
    biased = _biased(score, bias, expert, num_experts, IS_FULL)
    other_biased = _biased(other_score, bias, other, num_experts, IS_FULL)
    if IS_GPU:
        threshold = _threshold(biased, other_biased, TOP_K)
        first, last, count = _ends(biased >= threshold, other_biased >= threshold, expert, other)
        if (tl.sum(count, axis=0) == TOP_K) & (threshold > float("-inf")):
            chosen = tl.full([TOP_K_PADDED], _NO_EXPERT, tl.int32)
            for choice in tl.static_range(TOP_K):
                pick = tl.min(first, axis=0)
                is_picked = first == pick
                first = tl.where(is_picked, last, first)
                last = tl.where(is_picked, _NO_EXPERT, last)
                chosen = tl.where(slot == choice, pick, chosen)
            place = slot
        else:
            chosen = _pick(biased, other_biased, expert, other, slot, num_experts, TOP_K)
            place = _places(chosen)
    else:
        chosen = _pick(biased, other_biased, expert, other, slot, num_experts, TOP_K)
        place = _places(chosen)
    return chosen, place, score, other_score


@triton.jit
def weigh(
    logits, chosen, score, other_score, num_experts, TOP_K: tl.constexpr, PARTS: tl.constexpr,
    NORMALIZE: tl.constexpr, IS_GPU: tl.constexpr,
):  # fmt: skip
    """Routing weights of the selected experts, without ``scaling_factor``."""
    slot = tl.arange(0, chosen.shape[0])
    if IS_GPU:  # recomputing is faster than keeping scores
        weight = _score(logits, chosen, num_experts, PARTS, False)
    else:
        expert = tl.arange(0, score.shape[0])
        other = score.shape[0] + tl.arange(0, other_score.shape[0])
        weight = tl.zeros_like(slot).to(tl.float32)
        for choice in tl.static_range(TOP_K):
            pick = tl.sum(tl.where(slot == choice, chosen, 0), axis=0)
            plain = tl.sum(tl.where(expert == pick, score, 0.0), axis=0)
            plain += tl.sum(tl.where(other == pick, other_score, 0.0), axis=0)
            weight = tl.where(slot == choice, plain, weight)
    weight = tl.where(slot < TOP_K, weight, 0.0)
    if NORMALIZE:
        weight = weight / (tl.sum(weight, axis=0) + 1e-20)
    return weight


@triton.jit
def _pick(biased, other_biased, expert, other, slot, num_experts, TOP_K: tl.constexpr):
    """Select experts one by one, the best first; ties go to the lowest id."""
    key = tl.where(expert < num_experts, _key(biased), _LEAST)
    other_key = tl.where(other < num_experts, _key(other_biased), _LEAST)
    chosen = tl.full(slot.shape, _NO_EXPERT, tl.int32)
    for choice in tl.static_range(TOP_K):
        best = tl.maximum(tl.max(key, axis=0), tl.max(other_key, axis=0))
        pick = tl.min(tl.where(key == best, expert, _NO_EXPERT), axis=0)
        other_pick = tl.min(tl.where(other_key == best, other, _NO_EXPERT), axis=0)
        pick = tl.minimum(pick, other_pick)
        key = tl.where(expert == pick, _LEAST, key)
        other_key = tl.where(other == pick, _LEAST, other_key)
        chosen = tl.where(slot == choice, pick, chosen)
    return chosen


@triton.jit
def _places(chosen):
    """Rank of each id among ``chosen``."""
    return tl.sum((chosen[None, :] < chosen[:, None]).to(tl.int32), axis=1)


@triton.jit
def _threshold(scores, others, TOP_K: tl.constexpr):
    """The TOP_K-th largest among the best two distinct scores of each lane."""
    scores = _by_lane(scores, others.shape[0])
    others = _by_lane(others, others.shape[0])
    first = tl.maximum(_lane_max(scores), _lane_max(others))
    below = tl.where(scores < first[None, :, None], scores, float("-inf"))
    other_below = tl.where(others < first[None, :, None], others, float("-inf"))
    second = _key(tl.maximum(_lane_max(below), _lane_max(other_below)))
    first = _key(first)
    for _ in tl.static_range(TOP_K - 1):
        is_best = first == tl.max(first, axis=0)
        first = tl.where(is_best, second, first)
        second = tl.where(is_best, _LEAST, second)
    return _flipped(tl.max(first, axis=0)).to(tl.float32, bitcast=True)


@triton.jit
def _ends(is_best, other_is_best, expert, other):
    """Per lane: the first and the last expert that reaches the threshold, and the number of
    them."""
    first = _lane_min(_by_lane(tl.where(is_best, expert, _NO_EXPERT), other.shape[0]))
    other_first = _lane_min(_by_lane(tl.where(other_is_best, other, _NO_EXPERT), other.shape[0]))
    last = _lane_max(_by_lane(tl.where(is_best, expert, -1), other.shape[0]))
    other_last = _lane_max(_by_lane(tl.where(other_is_best, other, -1), other.shape[0]))
    count = _lane_sum(_by_lane(is_best.to(tl.int32), other.shape[0]))
    count += _lane_sum(_by_lane(other_is_best.to(tl.int32), other.shape[0]))
    first = tl.minimum(first, other_first)
    last = tl.maximum(last, other_last)
    return first, tl.where(last == first, _NO_EXPERT, last), count


@triton.jit
def _by_lane(x, WIDTH: tl.constexpr):
    """[n] as [n / (4 lanes), lanes, 4]: each lane loads four at a time, so no data moves."""
    LANES: tl.constexpr = 32 if WIDTH >= 128 else WIDTH // 4
    return tl.reshape(x, [x.shape[0] // (4 * LANES), LANES, 4])


@triton.jit
def _lane_max(x):
    return tl.max(tl.max(x, axis=2), axis=0)


@triton.jit
def _lane_min(x):
    return tl.min(tl.min(x, axis=2), axis=0)


@triton.jit
def _lane_sum(x):
    return tl.sum(tl.sum(x, axis=2), axis=0)


@triton.jit
def _biased(score, bias, expert, num_experts, IS_FULL: tl.constexpr):
    """Score plus bias, by which experts are selected; -inf if that is NaN or beyond num_experts."""
    biased = score + _load(bias, expert, num_experts, float("-inf"), IS_FULL)
    return tl.maximum(biased, float("-inf"))


@triton.jit
def _key(x):
    """Map f32 to i32 with the same order."""
    return _flipped(x.to(tl.int32, bitcast=True))


@triton.jit
def _flipped(bits):
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _score(logits, expert, num_experts, PARTS: tl.constexpr, IS_FULL: tl.constexpr):
    logit = _load(logits, expert, num_experts, 0.0, IS_FULL)
    for part in tl.static_range(1, PARTS):
        logit += _load(logits + part * num_experts, expert, num_experts, 0.0, IS_FULL)
    return tl.sqrt(_softplus(logit))


@triton.jit
def _load(place, expert, num_experts, other, IS_FULL: tl.constexpr):
    """IS_FULL: no mask is needed."""
    if IS_FULL:
        return tl.load(place + expert)
    else:  # noqa: RET505 - both are compiled otherwise
        return tl.load(place + expert, mask=expert < num_experts, other=other)


@triton.jit
def _softplus(x):
    """``max(x, 0) + log(1 + t)``, t = exp(-|x|), with a minimax polynomial for log(1 + t) / t in
    [0, 1]; relative error below 2e-7, rounding included."""
    t = tl.exp2(tl.abs(x) * -1.4426950408889634)
    p = 0.0052327439188957214 * t - 0.029505545273423195
    p = p * t + 0.07822665572166443
    p = p * t - 0.1366332769393921
    p = p * t + 0.19106058776378632
    p = p * t - 0.24842999875545502
    p = p * t + 0.33319100737571716
    p = p * t - 0.4999949336051941
    p = p * t + 0.9999999403953552
    return tl.maximum(x, 0.0) + p * t
