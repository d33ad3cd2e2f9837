"""Verification by rejection sampling in Triton: the filtered distribution of each row, then how
many drafts are kept and the best token in each part of the vocabulary, then the best of all parts.

Weights are exp((logit - best) / temperature), not normalized; ``kernels/sampling/triton_kept.py``
finds which of them the filters keep.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.kernels.launch import cdiv, check_tensor, next_power_of_2, sizes
from deepinfer.kernels.relaunch import launch
from deepinfer.kernels.sampling.checks import check_logits
from deepinfer.kernels.sampling.triton_kept import DEPTH, drawn_weights, kept_weights
from deepinfer.kernels.sampling.triton_kernel import exponential, row_word

from .verify_reference import ACCEPT_STREAM, LEAST_MASS, RESIDUAL_STREAM

_TILE, _WARPS, _PARTS = 512, 4, 32  # parts of the vocabulary, so that few requests fill a device
_KEPT_TILE, _KEPT_WARPS = 2048, 16
_PROGRAMS = 512  # that search for kept weights, each with its own workspace
_DEPTH = tl.constexpr(DEPTH)
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
    """``verify_drafts_reference`` in four launches; the host does not synchronize.

    The row stride of ``target`` may exceed the vocabulary.
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
    most = next_power_of_2(vocab_size)
    num_all, tile = rows + requests * depth, min(_KEPT_TILE, most)
    programs = min(num_all, _PROGRAMS)
    kept, room = target.new_empty(num_all, 3), target.new_empty(programs, DEPTH * tile)
    owner = torch.full_like(positions, -1)
    launch(owners_kernel, (requests,))(first, lens, owner, num_warps=1, enable_fp_fusion=False)
    launch(kept_kernel, (programs,))(
        target, draft, temperature, top_p, top_k, min_p, owner, lens, kept, room,
        target.stride(0), vocab_size, depth, rows, num_all, TILE=tile, num_warps=_KEPT_WARPS,
        enable_fp_fusion=False,
    )  # fmt: skip
    tile = min(_TILE, most)
    parts = min(_PARTS, next_power_of_2(cdiv(vocab_size, tile)))
    numbers = target.new_empty(3, requests, parts)
    tokens = numbers.new_empty(2, requests, parts, dtype=torch.int32)
    launch(verify_kernel, (requests, parts))(
        target, draft, kept, temperature, token_ids, first, lens, seeds, positions, result[0],
        numbers, tokens, target.stride(0), vocab_size, depth, rows, TILE=tile, num_warps=_WARPS,
        enable_fp_fusion=False,
    )  # fmt: skip
    launch(choose_kernel, (requests,))(
        numbers, tokens, result[1], PARTS=parts, num_warps=1, enable_fp_fusion=False
    )
    return result.T


@triton.jit
def owners_kernel(first_ptr, lens_ptr, owner_ptr):
    """Write the request of each row of the target's logits."""
    request = tl.program_id(0)
    first = tl.load(first_ptr + request)
    for place in range(tl.load(lens_ptr + request) + 1):
        tl.store(owner_ptr + first + place, request.to(tl.int64))


@triton.jit(do_not_specialize=["row_stride", "vocab_size", "depth", "num_rows", "num_all"])
def kept_kernel(
    target_ptr, draft_ptr, temperature_ptr, top_p_ptr, top_k_ptr, min_p_ptr, owner_ptr, lens_ptr,
    kept_ptr, room_ptr, row_stride, vocab_size, depth, num_rows, num_all, TILE: tl.constexpr,
):  # fmt: skip
    """``kept_weights`` of each row that is needed: rows of the target, then of the drafts."""
    room = room_ptr + tl.program_id(0).to(tl.int64) * (_DEPTH * TILE)
    row = tl.program_id(0).to(tl.int64)
    while row < num_all:
        # Addresses as integers, since triton-ascend has no select of pointers.
        if row < num_rows:
            address = (target_ptr + row * row_stride).to(tl.int64, bitcast=True)
            request = tl.load(owner_ptr + row)
        else:
            own = row - num_rows
            address = (draft_ptr + own * vocab_size).to(tl.int64, bitcast=True)
            request = own // depth
            request = tl.where(own % depth < tl.load(lens_ptr + request), request, -1)
        logits = address.to(tl.pointer_type(tl.float32), bitcast=True)
        if request >= 0:
            best, least, mass = kept_weights(
                logits, tl.maximum(tl.load(temperature_ptr + request), 1e-30),
                tl.load(top_p_ptr + request), tl.load(top_k_ptr + request),
                tl.load(min_p_ptr + request), room, vocab_size, TILE,
            )  # fmt: skip
            tl.store(kept_ptr + 3 * row, best)
            tl.store(kept_ptr + 3 * row + 1, least)
            tl.store(kept_ptr + 3 * row + 2, mass)
        row += tl.num_programs(0)


@triton.jit(do_not_specialize=["row_stride", "vocab_size", "depth", "num_rows"])
def verify_kernel(
    target_ptr, draft_ptr, kept_ptr, temperature_ptr, token_ids_ptr, first_ptr, lens_ptr, seeds_ptr,
    positions_ptr, num_kept_ptr, numbers_ptr, tokens_ptr, row_stride, vocab_size, depth, num_rows,
    TILE: tl.constexpr,
):  # fmt: skip
    """How many drafts a request keeps; and for a part of the vocabulary the best token of the
    residual distribution, the best of the target's own, and the mass of the residual.

    numbers [3, requests, parts] f32: both scores and the mass; tokens [2, requests, parts] i32.
    """
    request = tl.program_id(0).to(tl.int64)
    part, num_parts = tl.program_id(1), tl.num_programs(1)
    temperature = tl.maximum(tl.load(temperature_ptr + request), 1e-30)
    seed = tl.load(seeds_ptr + request)
    first, count = tl.load(first_ptr + request), tl.load(lens_ptr + request)
    num_kept, few = tl.zeros_like(count), tl.arange(0, 8)
    for place in range(count):
        row, own = first + place, request * depth + place
        token = tl.load(token_ids_ptr + own) + tl.arange(0, 1)
        target_row, draft_row = target_ptr + row * row_stride, draft_ptr + own * vocab_size
        target = _probs(target_row, kept_ptr + 3 * row, token, temperature, vocab_size)
        draft = _probs(draft_row, kept_ptr + 3 * (num_rows + own), token, temperature, vocab_size)
        word = row_word(seed ^ _ACCEPT, tl.load(positions_ptr + row))
        # The first of eight: triton-ascend fails on the noise of a single token.
        waiting = tl.max(tl.where(few == 0, exponential(word, few), 0.0), 0)
        is_kept = tl.max((tl.exp(-waiting) * draft < target).to(tl.int32), 0)
        num_kept += tl.where(num_kept == place, is_kept, 0)
    row, own = first + num_kept, request * depth + num_kept
    target_row, draft_row = target_ptr + row * row_stride, draft_ptr + own * vocab_size
    word = row_word(seed ^ _RESIDUAL, tl.load(positions_ptr + row))
    lane = tl.arange(0, TILE)
    best, best_token = tl.zeros([TILE], tl.float32), tl.zeros([TILE], tl.int32)
    left_best, left_token, mass = best, best_token, best
    size = tl.cdiv(tl.cdiv(vocab_size, TILE), num_parts) * TILE
    for start in range(part * size, tl.minimum(part * size + size, vocab_size), TILE):
        token = start + lane
        target = _probs(target_row, kept_ptr + 3 * row, token, temperature, vocab_size)
        if tl.max(target, 0) > 0.0:
            draft = tl.zeros_like(target)
            if num_kept < count:
                draft = _probs(
                    draft_row, kept_ptr + 3 * (num_rows + own), token, temperature, vocab_size
                )
            left = tl.maximum(target - draft, 0.0)
            mass += left
            noise = exponential(word, token)
            score, left_score = tl.div_rn(target, noise), tl.div_rn(left, noise)
            best_token = tl.where(score > best, token, best_token)
            best = tl.maximum(score, best)
            left_token = tl.where(left_score > left_best, token, left_token)
            left_best = tl.maximum(left_score, left_best)
    if part == 0:
        tl.store(num_kept_ptr + request, num_kept)
    size = tl.num_programs(0).to(tl.int64) * num_parts
    place = request * num_parts + part
    _store_best(left_best, left_token, numbers_ptr + place, tokens_ptr + place)
    _store_best(best, best_token, numbers_ptr + size + place, tokens_ptr + size + place)
    tl.store(numbers_ptr + 2 * size + place, tl.sum(mass, 0))


@triton.jit
def _store_best(score, token, score_ptr, token_ptr):
    """Store the best score and the lowest token that has it; scores are non-negative."""
    best = tl.max(score, 0)
    tl.store(score_ptr, best)
    tl.store(token_ptr, tl.min(tl.where(score == best, token, 2147483647), 0))


@triton.jit
def choose_kernel(numbers_ptr, tokens_ptr, token_ptr, PARTS: tl.constexpr):
    """The token that follows, from the results for each part of the vocabulary."""
    request, size = tl.program_id(0), tl.num_programs(0) * PARTS
    place = request * PARTS + tl.arange(0, PARTS)
    mass = tl.sum(tl.load(numbers_ptr + 2 * size + place), 0)
    # If the residual has no mass, sample from the target itself.
    place += tl.where(mass > _LEAST, 0, size)
    score, token = tl.load(numbers_ptr + place), tl.load(tokens_ptr + place)
    token = tl.min(tl.where(score == tl.max(score, 0), token, 2147483647), 0)
    tl.store(token_ptr + request, token.to(tl.int64))


@triton.jit
def _probs(row_ptr, kept_ptr, token, temperature, vocab_size):
    """Probabilities of tokens of a row after the filters."""
    best, least, mass = tl.load(kept_ptr), tl.load(kept_ptr + 1), tl.load(kept_ptr + 2)
    weights = drawn_weights(row_ptr, token, best, temperature, vocab_size)
    return tl.where(weights >= least, weights, 0.0) / mass
