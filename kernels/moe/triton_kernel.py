"""Mixture of experts in Triton: choice of experts, experts, sum of their outputs.

T tokens, E experts, K chosen per token, P = T K pairs, d model width, I expert width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.errors import TensorError
from deepinfer.kernels.gemm import Weight
from deepinfer.kernels.gemm.activations import Activations, quantize_activations
from deepinfer.kernels.gemm.expert_rows import ExpertRows
from deepinfer.kernels.gemm.k_order import KOrder
from deepinfer.kernels.gemm.matrix_path import MatrixPath, tile_for
from deepinfer.kernels.gemm.triton_kernel import (
    check_operands,
    expert_linear_triton,
    fp32_linear_parts_triton,
)
from deepinfer.kernels.launch import check_tensor, describe
from deepinfer.kernels.quant.triton_bits import bf16_bits

from .pair_order import order_pairs
from .triton_swiglu import swiglu_of_experts

if TYPE_CHECKING:
    from deepinfer.kernels.exchange import Arrivals

_ROUTED_ROWS = 4
_ROUTER_PARTS = 4
_COLUMNS = 1024


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
    if rows:
        parts = _ROUTER_PARTS if x.shape[1] % (64 * _ROUTER_PARTS) == 0 else 1
        logits = fp32_linear_parts_triton(x, gate, parts)
        _route_kernel[(triton.cdiv(rows, _ROUTED_ROWS),)](
            logits, bias, ids, weights,
            0 if bias.dim() == 1 else experts, rows, experts, scaling_factor,
            CHOSEN=num_experts_per_tok,
            CHOSEN_PADDED=triton.next_power_of_2(num_experts_per_tok),
            EXPERTS=triton.next_power_of_2(experts),
            PARTS=parts,
            NORMALIZE=normalize and num_experts_per_tok > 1,
            ROWS=_ROUTED_ROWS,
            enable_fp_fusion=True,
        )  # fmt: skip
    return ids, weights


def experts_triton(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    gate_up: Weight,
    down: Weight,
    limit: float,
    num_pairs: int | None = None,
    *,
    path: MatrixPath | None = None,
) -> Tensor:
    """As ``experts_reference``; choices outside [0, E), as of other ranks' experts, add nothing.

    Nothing waits for the device and no size depends on the routing: fit for a graph.
    """
    if not ids.numel():
        return torch.zeros(len(ids), down.values.shape[1], dtype=torch.float32, device=x.device)
    return sum_of_pairs(
        *expert_pairs_triton(x, ids, weights, gate_up, down, limit, num_pairs, path=path)
    )


def expert_pairs_triton(
    x: Tensor | Arrivals,
    ids: Tensor,
    weights: Tensor,
    gate_up: Weight,
    down: Weight,
    limit: float,
    num_pairs: int | None = None,
    *,
    path: MatrixPath | None = None,
) -> tuple[Tensor, ExpertRows]:
    """The rows that ``experts_triton`` adds up, [R, d] bf16; at least one pair."""
    num_experts = len(down.values)
    if isinstance(x, Tensor):
        check_operands(x, gate_up, gate_up.values[0])
    if gate_up.values.shape[1] % 4 or not down.values.is_contiguous():
        raise TensorError(
            f"experts: expected an even expert width and contiguous weights, found gate_up "
            f"{list(gate_up.values.shape)} and down {describe(down.values)}"
        )
    check_tensor("ids", ids, torch.int64, (len(x), None), ids)
    check_tensor("weights", weights, torch.float32, tuple(ids.shape), ids)
    path = MatrixPath.of(ids.device) if path is None else path
    average = (ids.numel() if num_pairs is None else num_pairs) // num_experts
    tile = tile_for(average, gate_up.values.shape[1], num_experts, path, ids.device)
    rows = order_pairs(ids, num_experts, tile.tokens)
    acts = expert_activations(x, path, gate_up.order, rows)
    hidden = expert_linear_triton(acts, gate_up, rows, tile)
    activated = swiglu_of_experts(hidden, limit, weights, rows, path, down.order)
    return expert_linear_triton(activated, down, rows, tile), rows


def expert_activations(
    x: Tensor | Arrivals, path: MatrixPath, order: KOrder, rows: ExpertRows
) -> Activations:
    """x [T, d] bf16, or tokens as they came from other ranks, as ``rows`` of experts."""
    if isinstance(x, Tensor):
        return quantize_activations(x, path, order, rows)
    return x.activations(path, order, rows)


def sum_of_pairs(outputs: Tensor, rows: ExpertRows) -> Tensor:
    """A token's rows of [R, N] bf16, added in the order of its choices: [T, N] f32."""
    return sum_rows_triton(outputs, rows.row, rows.per_token)


def sum_rows_triton(
    rows: Tensor, row: Tensor, per_token: int, dtype: torch.dtype = torch.float32
) -> Tensor:
    """As ``sum_rows_reference``."""
    check_tensor("row", row, torch.int32, (None,), rows)
    tokens, width = len(row) // per_token, rows.shape[1]
    out = torch.empty(tokens, width, dtype=dtype, device=rows.device)
    is_bf16 = dtype is torch.bfloat16
    if tokens:
        _sum_kernel[(tokens, triton.cdiv(width, _COLUMNS))](
            rows, row, out.view(torch.int16) if is_bf16 else out, width, per_token, _COLUMNS,
            is_bf16, enable_fp_fusion=True,
        )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["num_rows"])
def _route_kernel(
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
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
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


@triton.jit
def _sum_kernel(
    outputs, pair_row, out, width, per_token, COLUMNS: tl.constexpr, BF16: tl.constexpr
):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([COLUMNS], tl.float32)
    for choice in range(per_token):
        row = tl.load(pair_row + token * per_token + choice).to(tl.int64)
        if row >= 0:
            part = tl.load(outputs + row * width + column, mask=column < width, other=0.0)
            total += part.to(tl.float32)
    if BF16:
        total = bf16_bits(total).to(tl.int16)
    tl.store(out + token * width + column, total, mask=column < width)
