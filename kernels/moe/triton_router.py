"""Choice of experts in Triton: products with the router's weight, and the best of their scores.

T tokens, E experts, K chosen per token, d model width.  Logits are sums over parts of d, so that
few columns keep a device busy.  A warp chooses for one token: all that it compares stays in its
registers, as integers, of which it finds the largest by one instruction.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.errors import TensorError
from deepinfer.kernels.gemm import Weight, fp32_linear_parts
from deepinfer.kernels.launch import check_tensor, is_npu, next_power_of_2

_PARTS = 4
_LEAST = tl.constexpr(-(2**31))


def route_triton(
    x: Tensor,
    gate: Weight,
    bias: Tensor,
    *,
    num_experts_per_tok: int,
    normalize: bool,
    scaling_factor: float,
) -> tuple[Tensor, Tensor]:
    """As ``route_reference``.  A row with NaN scores gets valid ids and NaN weights."""
    rows, experts = len(x), len(gate.values)
    check_tensor("bias", bias, torch.float32, (experts,) if bias.dim() == 1 else (rows, experts), x)
    if not 0 < num_experts_per_tok <= experts:
        raise TensorError(f"route: cannot choose {num_experts_per_tok} of {experts} experts")
    ids = torch.empty(rows, num_experts_per_tok, dtype=torch.int64, device=x.device)
    weights = torch.empty(rows, num_experts_per_tok, dtype=torch.float32, device=x.device)
    # Two powers of two that hold all experts with less to spare than one.
    first = max(16, next_power_of_2(experts) // 2)
    choice = {
        "CHOSEN": num_experts_per_tok,
        "CHOSEN_PADDED": next_power_of_2(num_experts_per_tok),
        "FIRST": first,
        "REST": max(16, next_power_of_2(max(1, experts - first))),
        "NORMALIZE": normalize and num_experts_per_tok > 1,
    }
    if not rows:
        return ids, weights
    parts = _PARTS if x.shape[1] % (64 * _PARTS) == 0 else 1
    logits = fp32_linear_parts(x, gate, parts)
    choice_kernel[(rows,)](
        logits, bias, ids, weights,
        0 if bias.dim() == 1 else experts, rows, experts, scaling_factor,
        **choice, PARTS=parts, GATHER=not is_npu(x.device), num_warps=1, enable_fp_fusion=True,
    )  # fmt: skip
    return ids, weights


@triton.jit(do_not_specialize=["num_rows"])
def choice_kernel(
    logits, bias, ids, weights, bias_stride, num_rows, num_experts, scaling_factor,
    CHOSEN: tl.constexpr, CHOSEN_PADDED: tl.constexpr, FIRST: tl.constexpr, REST: tl.constexpr,
    PARTS: tl.constexpr, NORMALIZE: tl.constexpr, GATHER: tl.constexpr,
):  # fmt: skip
    """From parts of the logits, [PARTS, num_rows, num_experts]: a program for each row.

    GATHER: scores of the chosen are computed again from their logits; Ascend's front end aborts on
    loads from places that are computed.
    """
    row = tl.program_id(0).to(tl.int64)
    logits += row * num_experts
    bias += row * bias_stride
    size = num_rows.to(tl.int64) * num_experts
    expert = tl.arange(0, FIRST)
    other = FIRST + tl.arange(0, REST)
    score = _score(logits, expert, num_experts, size, PARTS)
    key = _key(score, bias, expert, num_experts)
    other_score = _score(logits, other, num_experts, size, PARTS)
    other_key = _key(other_score, bias, other, num_experts)
    slot = tl.arange(0, CHOSEN_PADDED)
    chosen = tl.full([CHOSEN_PADDED], FIRST + REST, tl.int32)
    weight = tl.zeros([CHOSEN_PADDED], tl.float32)
    for choice in tl.static_range(CHOSEN):
        best = tl.maximum(tl.max(key, axis=0), tl.max(other_key, axis=0))
        pick = tl.min(tl.where(key == best, expert, FIRST + REST), axis=0)
        other_pick = tl.min(tl.where(other_key == best, other, FIRST + REST), axis=0)
        pick = tl.minimum(pick, other_pick)
        key = tl.where(expert == pick, _LEAST, key)
        other_key = tl.where(other == pick, _LEAST, other_key)
        chosen = tl.where(slot == choice, pick, chosen)
        if not GATHER:
            plain = tl.sum(tl.where(expert == pick, score, 0.0), axis=0)
            plain += tl.sum(tl.where(other == pick, other_score, 0.0), axis=0)
            weight = tl.where(slot == choice, plain, weight)
    if GATHER:  # faster than to carry scores along
        weight = tl.where(slot < CHOSEN, _score(logits, chosen, num_experts, size, PARTS), 0.0)
    if NORMALIZE:
        weight = weight / (tl.sum(weight, axis=0) + 1e-20)
    lower = (chosen[None, :] < chosen[:, None]).to(tl.int32)
    target = row * CHOSEN + tl.sum(lower, axis=1)
    tl.store(ids + target, chosen.to(tl.int64), mask=slot < CHOSEN)
    tl.store(weights + target, weight * scaling_factor, mask=slot < CHOSEN)


@triton.jit
def _key(score, bias, expert, num_experts):
    """Biased scores as integers in the same order; NaN is as small as an expert's can be."""
    inside = expert < num_experts
    key = score + tl.load(bias + expert, mask=inside, other=0.0)
    bits = tl.where(key == key, key, float("-inf")).to(tl.int32, bitcast=True)
    return tl.where(inside, tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits), _LEAST)


@triton.jit
def _score(logits, expert, num_experts, size, PARTS: tl.constexpr):
    logit = tl.zeros(expert.shape, tl.float32)
    for part in tl.static_range(PARTS):
        logit += tl.load(logits + part * size + expert, mask=expert < num_experts, other=0.0)
    return tl.sqrt(_softplus(logit))


@triton.jit
def _softplus(x):
    """``log(1 + exp(x))``, x above 20; the small part of 1 + exp(x) that rounding drops is kept."""
    grown = tl.exp(tl.where(x > 20.0, 20.0, x))
    one_more = 1.0 + grown
    kept = one_more - 1.0
    log = tl.where(kept == 0.0, grown, tl.log(one_more) * (grown / tl.where(kept == 0, 1.0, kept)))
    return tl.where(x > 20.0, x, log)
