"""Verification by rejection in Triton: what each row is drawn from, then a program per request.

Weights are those of ``kernels/sampling``: exp((logit - best) / temperature), not divided by their
sum.  The filters keep the weights from some weight on, which is searched for, not sorted for.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.kernels.launch import check_tensor, next_power_of_2, sizes
from deepinfer.kernels.relaunch import launch
from deepinfer.kernels.sampling.checks import check_logits
from deepinfer.kernels.sampling.triton_kernel import (
    exponential,
    more_likely,
    row_word,
    token_weights,
)

from .verify_reference import ACCEPT_STREAM, LEAST_MASS, RESIDUAL_STREAM

_TILE = 1024
_ACCEPT = tl.constexpr(ACCEPT_STREAM)
_RESIDUAL = tl.constexpr(RESIDUAL_STREAM)
_LEAST = tl.constexpr(LEAST_MASS)


def verify_drafts_triton(
    target: Tensor,
    draft: Tensor,
    token_ids: Tensor,
    first: Tensor,
    lens: Tensor,
    temperature: Tensor,
    top_p: Tensor,
    top_k: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
) -> Tensor:
    """``verify_drafts_reference`` in four launches; nothing waits for the device.

    Rows of ``target`` may have gaps between them.
    Raises: TensorError for a wrong dtype, shape, device or layout.
    """
    rows, vocab_size = check_logits("target", target)
    requests, depth, _ = sizes("draft", draft, 3)
    check_tensor("draft", draft, torch.float32, (requests, depth, vocab_size), target)
    check_tensor("token_ids", token_ids, torch.int64, (requests, depth), target)
    for name, x in (("temperature", temperature), ("top_p", top_p), ("min_p", min_p)):
        check_tensor(name, x, torch.float32, (requests,), target)
    integers = {"first": first, "lens": lens, "top_k": top_k, "seeds": seeds}
    for name, x in integers.items():
        check_tensor(name, x, torch.int64, (requests,), target)
    check_tensor("positions", positions, torch.int64, (rows,), target)
    result = torch.empty(2, requests, dtype=torch.int64, device=target.device)
    if not requests:
        return result.T
    filters, tile = (temperature, top_p, top_k, min_p), min(_TILE, next_power_of_2(vocab_size))
    target_kept = target.new_empty(rows, 3)
    draft_kept = target.new_empty(requests * depth, 3)
    owner = torch.zeros_like(positions)  # rows of drafts that are not verified have none
    launch(owners_kernel, (requests,))(first, lens, owner, num_warps=1, enable_fp_fusion=False)
    launch(kept_kernel, (rows,))(
        target, *filters, owner, target_kept, target.stride(0), vocab_size, 0, TILE=tile,
        num_warps=8, enable_fp_fusion=False,
    )  # fmt: skip
    if depth:
        launch(kept_kernel, (requests * depth,))(
            draft, *filters, owner, draft_kept, vocab_size, vocab_size, depth, TILE=tile,
            num_warps=8, enable_fp_fusion=False,
        )  # fmt: skip
    launch(verify_kernel, (requests,))(
        target, draft, target_kept, draft_kept, temperature, token_ids, first, lens, seeds,
        positions, result[0], result[1], target.stride(0), vocab_size, depth, TILE=tile,
        num_warps=8, enable_fp_fusion=False,
    )  # fmt: skip
    return result.T


@triton.jit
def owners_kernel(first_ptr, lens_ptr, owner_ptr):
    """Of each row of the target's logits whose it is."""
    request = tl.program_id(0)
    first = tl.load(first_ptr + request)
    for place in range(tl.load(lens_ptr + request) + 1):
        tl.store(owner_ptr + first + place, request.to(tl.int64))


@triton.jit(do_not_specialize=["row_stride", "vocab_size", "depth"])
def kept_kernel(
    logits_ptr, temperature_ptr, top_p_ptr, top_k_ptr, min_p_ptr, owner_ptr, kept_ptr, row_stride,
    vocab_size, depth, TILE: tl.constexpr,
):  # fmt: skip
    """Of each row the best logit, the least weight that is kept, and the sum of those kept.

    Rows of drafts are ``depth`` for each request, without gaps; of others, ``depth`` is 0.
    """
    row = tl.program_id(0).to(tl.int64)
    request = row // tl.maximum(depth, 1)
    if depth == 0:
        request = tl.load(owner_ptr + row)
    logits = logits_ptr + row * row_stride
    temperature = tl.load(temperature_ptr + request)
    top_p, top_k = tl.load(top_p_ptr + request), tl.load(top_k_ptr + request)
    min_p = tl.load(min_p_ptr + request)
    lane = tl.arange(0, TILE)
    most = tl.full([TILE], float("-inf"), tl.float32)
    for start in range(0, vocab_size, TILE):
        token = start + lane
        x = tl.load(logits + token, mask=token < vocab_size, other=float("-inf"))
        most = tl.maximum(most, x)
    best = tl.max(most, 0)
    # As integers, weights from 0 to 1 are in the same order; 1 is always kept.
    low, high = 0, 0x3F800000
    if (top_p < 1.0) | (top_k > 0) | (min_p > 0.0):
        while low < high:
            middle = (low + high) // 2
            weight = middle.to(tl.float32, bitcast=True)  # type: ignore[attr-defined]
            count, above, total = more_likely(logits, best, temperature, weight, vocab_size, TILE)
            is_dropped = (top_k > 0) & (count >= top_k)
            is_dropped = is_dropped | ((top_p < 1.0) & (above >= top_p * total))
            is_dropped = is_dropped | (weight < min_p)
            low = tl.where(is_dropped, middle + 1, low)
            high = tl.where(is_dropped, high, middle)
    else:
        high = 0
    least = high.to(tl.float32, bitcast=True)  # type: ignore[attr-defined]
    sums = tl.zeros([TILE], tl.float32)
    for start in range(0, vocab_size, TILE):
        weights = token_weights(logits, start + lane, best, temperature, vocab_size)
        sums += tl.where(weights >= least, weights, 0.0)
    tl.store(kept_ptr + 3 * row, best)
    tl.store(kept_ptr + 3 * row + 1, least)
    tl.store(kept_ptr + 3 * row + 2, tl.sum(sums, 0))


@triton.jit(do_not_specialize=["row_stride", "vocab_size", "depth"])
def verify_kernel(
    target_ptr, draft_ptr, target_kept_ptr, draft_kept_ptr, temperature_ptr, token_ids_ptr,
    first_ptr, lens_ptr, seeds_ptr, positions_ptr, num_kept_ptr, token_ptr, row_stride, vocab_size,
    depth, TILE: tl.constexpr,
):  # fmt: skip
    request = tl.program_id(0).to(tl.int64)
    temperature = tl.load(temperature_ptr + request)
    seed = tl.load(seeds_ptr + request)
    first, count = tl.load(first_ptr + request), tl.load(lens_ptr + request)
    num_kept = tl.zeros_like(count)
    for place in range(count):
        own = request * depth + place
        token = tl.load(token_ids_ptr + own) + tl.arange(0, 1)
        target = tl.sum(
            _probs(
                target_ptr,
                target_kept_ptr,
                first + place,
                row_stride,
                token,
                temperature,
                vocab_size,
            ),
            0,
        )
        draft = tl.sum(
            _probs(draft_ptr, draft_kept_ptr, own, vocab_size, token, temperature, vocab_size), 0
        )
        word = row_word(seed ^ _ACCEPT, tl.load(positions_ptr + first + place))
        waiting = tl.sum(exponential(word, tl.zeros([1], tl.int32)), 0)
        is_kept = (tl.exp(-waiting) * draft < target) & (num_kept == place)
        num_kept += is_kept.to(tl.int64)
    row, own = first + num_kept, request * depth + num_kept
    is_cut = num_kept < count
    lane = tl.arange(0, TILE)
    mass = tl.zeros([TILE], tl.float32)
    if is_cut:
        for start in range(0, vocab_size, TILE):
            token = start + lane
            target = _probs(
                target_ptr, target_kept_ptr, row, row_stride, token, temperature, vocab_size
            )
            draft = _probs(
                draft_ptr, draft_kept_ptr, own, vocab_size, token, temperature, vocab_size
            )
            mass += tl.maximum(target - draft, 0.0)
    is_residual = tl.sum(mass, 0) > _LEAST
    word = row_word(seed ^ _RESIDUAL, tl.load(positions_ptr + row))
    best = tl.full([TILE], -1.0, tl.float32)
    best_token = tl.zeros([TILE], tl.int32)
    for start in range(0, vocab_size, TILE):
        token = start + lane
        value = _probs(target_ptr, target_kept_ptr, row, row_stride, token, temperature, vocab_size)
        if is_residual:
            draft = _probs(
                draft_ptr, draft_kept_ptr, own, vocab_size, token, temperature, vocab_size
            )
            value = tl.maximum(value - draft, 0.0)
        score = tl.where(token < vocab_size, tl.div_rn(value, exponential(word, token)), -1.0)
        best_token = tl.where(score > best, token, best_token)
        best = tl.maximum(best, score)
    chosen = tl.min(tl.where(best == tl.max(best, 0), best_token, 2147483647), 0)
    tl.store(num_kept_ptr + request, num_kept)
    tl.store(token_ptr + request, chosen.to(tl.int64))


@triton.jit
def _probs(logits_ptr, kept_ptr, row, row_stride, token, temperature, vocab_size):
    """Probabilities that tokens are drawn with, after the filters."""
    best, least = tl.load(kept_ptr + 3 * row), tl.load(kept_ptr + 3 * row + 1)
    weights = token_weights(logits_ptr + row * row_stride, token, best, temperature, vocab_size)
    return tl.where(weights >= least, weights, 0.0) / tl.load(kept_ptr + 3 * row + 2)
