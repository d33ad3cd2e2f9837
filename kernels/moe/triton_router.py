"""Choice of experts in Triton: products with the router's weight, and the best of their scores.

T tokens, E experts, K chosen per token, d model width.  Logits are sums over parts of d, so that
few columns keep a device busy.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.errors import TensorError
from deepinfer.kernels.gemm import Weight
from deepinfer.kernels.gemm.triton_kernel import fp32_linear_parts_triton
from deepinfer.kernels.launch import check_tensor

_PARTS, _ROUTED_ROWS = 4, 4


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
    choice = {
        "CHOSEN": num_experts_per_tok,
        "CHOSEN_PADDED": triton.next_power_of_2(num_experts_per_tok),
        "EXPERTS": triton.next_power_of_2(experts),
        "NORMALIZE": normalize and num_experts_per_tok > 1,
    }
    if not rows:
        return ids, weights
    parts = _PARTS if x.shape[1] % (64 * _PARTS) == 0 else 1
    logits = fp32_linear_parts_triton(x, gate, parts)
    choice_kernel[(triton.cdiv(rows, _ROUTED_ROWS),)](
        logits, bias, ids, weights,
        0 if bias.dim() == 1 else experts, rows, experts, scaling_factor,
        **choice, PARTS=parts, ROWS=_ROUTED_ROWS, enable_fp_fusion=True,
    )  # fmt: skip
    return ids, weights


@triton.jit(do_not_specialize=["num_rows"])
def choice_kernel(
    logits,
    bias,
    ids,
    weights,
    bias_stride,
    num_rows,
    num_experts,
    scaling_factor,
    CHOSEN: tl.constexpr,
    CHOSEN_PADDED: tl.constexpr,
    EXPERTS: tl.constexpr,
    PARTS: tl.constexpr,
    NORMALIZE: tl.constexpr,
    ROWS: tl.constexpr,
):
    _choose(
        tl.program_id(0) * ROWS, logits, bias, ids, weights, bias_stride, num_rows, num_experts,
        scaling_factor, CHOSEN, CHOSEN_PADDED, EXPERTS, PARTS, NORMALIZE, ROWS,
    )  # fmt: skip


@triton.jit
def _choose(
    first, logits, bias, ids, weights, bias_stride, num_rows, num_experts, scaling_factor,
    CHOSEN: tl.constexpr, CHOSEN_PADDED: tl.constexpr, EXPERTS: tl.constexpr, PARTS: tl.constexpr,
    NORMALIZE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Rows ``first`` and on, from parts of their logits [PARTS, num_rows, num_experts]."""
    row = first + tl.arange(0, ROWS)
    expert = tl.arange(0, EXPERTS)[None, :]
    valid = (row < num_rows)[:, None] & (expert < num_experts)
    place = row.to(tl.int64)[:, None]
    logit = tl.zeros([ROWS, EXPERTS], tl.float32)
    for part in tl.static_range(PARTS):
        source = (part * num_rows + place) * num_experts + expert
        logit += tl.load(logits + source, mask=valid, other=0.0)
    score = tl.sqrt(_softplus(logit))
    key = score + tl.load(bias + place * bias_stride + expert, mask=valid, other=0.0)
    key = tl.where(key == key, key, float("-inf"))
    free = expert < num_experts
    slot = tl.arange(0, CHOSEN_PADDED)[None, :]
    chosen = tl.full([ROWS, CHOSEN_PADDED], EXPERTS, tl.int32)
    weight = tl.zeros([ROWS, CHOSEN_PADDED], tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    for choice in tl.static_range(CHOSEN):
        best = tl.max(tl.where(free, key, float("-inf")), axis=1)
        ties = free & (key == best[:, None])
        pick = tl.min(tl.where(ties, expert, EXPERTS), axis=1)
        taken = expert == pick[:, None]
        plain = tl.sum(tl.where(taken, score, 0.0), axis=1)
        free = free & (expert != pick[:, None])
        chosen = tl.where(slot == choice, pick[:, None], chosen)
        weight = tl.where(slot == choice, plain[:, None], weight)
        total += plain
    if NORMALIZE:
        weight = weight / (total + 1e-20)[:, None]
    lower = (chosen[:, None, :] < chosen[:, :, None]).to(tl.int32)
    target = place * CHOSEN + tl.sum(lower, axis=2)
    written = (row < num_rows)[:, None] & (slot < CHOSEN)
    tl.store(ids + target, chosen.to(tl.int64), mask=written)
    tl.store(weights + target, weight * scaling_factor, mask=written)


@triton.jit
def _softplus(x):
    """``log(1 + exp(x))``, x above 20; the small part of 1 + exp(x) that rounding drops is kept."""
    grown = tl.exp(tl.where(x > 20.0, 20.0, x))
    one_more = 1.0 + grown
    kept = one_more - 1.0
    log = tl.where(kept == 0.0, grown, tl.log(one_more) * (grown / tl.where(kept == 0, 1.0, kept)))
    return tl.where(x > 20.0, x, log)
