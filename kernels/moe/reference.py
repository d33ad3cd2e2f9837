"""Mixture of experts in plain torch: the specification.

T tokens, E experts, top K per token, d model width, I expert width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.kernels.gemm import Weight, fp32_linear, linear
from deepinfer.kernels.numeric import silu, softplus
from deepinfer.kernels.quant import fake_quantize_fp8


def route_reference(
    x: Tensor,
    gate: Weight,
    bias: Tensor,
    *,
    num_experts_per_tok: int,
    normalize: bool,
    scaling_factor: float,
) -> tuple[Tensor, Tensor]:
    """Select the top-k experts by biased score; their weights are the unbiased scores.

    Shapes: x [T, d] bf16, gate [E, d], bias [E] or [T, E] f32; returns ids [T, K] i64 ascending and
    weights [T, K] f32.  Ties go to the lower id.  Batch-invariant: yes.
    """
    scores = softplus(fp32_linear(x, gate)).sqrt()
    order = torch.sort(scores + bias, dim=-1, descending=True, stable=True).indices
    ids = order[:, :num_experts_per_tok]
    weights = scores.gather(1, ids)
    if normalize and num_experts_per_tok > 1:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    ids, by_id = ids.sort(dim=-1)
    return ids, (weights * scaling_factor).gather(1, by_id)


def swiglu_reference(gate_up: Tensor, limit: float, weights: Tensor | None = None) -> Tensor:
    """``weights * silu(gate) * up`` with both halves clamped, the gate only from above.

    Shapes: gate_up [N, 2 I] bf16 (gate first), weights [N] f32; returns [N, I] bf16.
    """
    gate, up = gate_up.float().chunk(2, dim=-1)
    activated = silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)
    if weights is not None:
        activated = weights[:, None] * activated
    return activated.to(torch.bfloat16)


def experts_reference(
    x: Tensor, ids: Tensor, weights: Tensor, gate_up: Weight, down: Weight, limit: float
) -> Tensor:
    """Sum of the selected experts' outputs, in ascending order of expert id.

    Shapes: x [T, d] bf16, ids [T, K] i64 ascending, weights [T, K] f32, gate_up [E, 2 I, d] (gate
    first), down [E, d, I]; returns [T, d] f32.  The routing weight is applied before ``down``.
    Batch-invariant: yes.
    """
    num_tokens, per_token = ids.shape
    experts, order = ids.flatten().sort(stable=True)
    counts = torch.bincount(experts, minlength=gate_up.values.shape[0]).tolist()
    tokens = order // per_token
    hidden = _per_expert(fake_quantize_fp8(x)[tokens], counts, gate_up)
    activated = swiglu_reference(hidden, limit, weights.flatten()[order])
    outputs = _per_expert(fake_quantize_fp8(activated), counts, down)
    by_pair = torch.empty_like(outputs).index_copy(0, order, outputs)
    pairs = by_pair.view(num_tokens, per_token, x.shape[1]).float()
    total = pairs[:, 0]
    for choice in range(1, per_token):
        total = total + pairs[:, choice]
    return total


def sum_rows_reference(
    rows: Tensor, row: Tensor, per_token: int, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Gather each token's rows and add them up in fp32 in their order, rounded once.

    Shapes: rows [R, N] bf16, row [T per_token] i32, -1 for none; returns [T, N] ``dtype``.
    Batch-invariant: yes.
    """
    named = row.view(-1, per_token).long()
    total = torch.zeros(len(named), rows.shape[1], device=rows.device)
    for place in named.unbind(1):
        total = total + torch.where(place[:, None] < 0, 0.0, rows[place.clamp(min=0)].float())
    return total.to(dtype)


def _per_expert(rows: Tensor, counts: list[int], weight: Weight) -> Tensor:
    """Grouped GEMM: consecutive runs of ``counts`` rows [N, K] bf16, one expert each: [N, out]
    bf16."""
    pieces = []
    start = 0
    for expert, count in enumerate(counts):
        if count:
            pieces.append(linear(rows[start : start + count], weight[expert]))
            start += count
    return torch.cat(pieces) if pieces else rows.new_empty(0, weight.values.shape[1])
