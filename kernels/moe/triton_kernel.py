"""Mixture of experts in Triton: grouped GEMMs and the sum over a token's experts.

T tokens, E experts, top K per token, P = T K pairs, d model width, I expert width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.errors import TensorError
from deepinfer.kernels.gemm import Weight
from deepinfer.kernels.gemm.activations import Activations
from deepinfer.kernels.gemm.checks import check_members, check_operands, check_weight
from deepinfer.kernels.gemm.expert_rows import ExpertRows
from deepinfer.kernels.gemm.k_order import KOrder
from deepinfer.kernels.gemm.matrix_path import MatrixPath, tile_for
from deepinfer.kernels.gemm.triton_kernel import expert_linear_triton
from deepinfer.kernels.launch import cdiv, check_tensor, describe
from deepinfer.kernels.quant.triton_bits import bf16_bits
from deepinfer.kernels.relaunch import launch

from .pair_order import order_pairs, order_tokens
from .slots import Slots
from .triton_swiglu import swiglu_of_rows

if TYPE_CHECKING:
    from deepinfer.kernels.exchange import Arrivals

_COLUMNS = 1024


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
    """As ``experts_reference``; ids outside [0, E), such as experts of other ranks, contribute
    nothing.

    The host does not synchronize and no size depends on the routing, so CUDA graphs can capture it.
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
    slots: Slots | None = None,
    *,
    path: MatrixPath | None = None,
) -> tuple[Tensor, ExpertRows]:
    """The rows that ``experts_triton`` adds up, [R, d] bf16, and their layout; at least one
    pair."""
    check_members("gate_up", gate_up)
    check_members("down", down)
    num_experts = len(down.values)
    if isinstance(x, Tensor):
        check_operands(x, gate_up, gate_up.values[0])
    check_weight("gate_up", gate_up)
    check_weight("down", down)
    both = gate_up.num_rows
    if both % 4 or down.shape[::2] != (len(gate_up.values), both // 2):
        raise TensorError(
            f"down: expected [{len(gate_up.values)}, any, {both // 2}] for gate_up of "
            f"{list(gate_up.shape)} (an even expert width), found {list(down.shape)}"
        )
    check_tensor("ids", ids, torch.int64, (len(x), None), ids)
    check_tensor("weights", weights, torch.float32, tuple(ids.shape), ids)
    path = MatrixPath.of(ids.device) if path is None else path
    average = (ids.numel() if num_pairs is None else num_pairs) // num_experts
    tile = tile_for(average, gate_up.values.shape[1], num_experts, path, ids.device)
    rows, acts = order_experts(x, ids, num_experts, tile.tokens, path, gate_up.order, slots)
    hidden = expert_linear_triton(acts, gate_up, rows, tile)
    activated = swiglu_of_rows(hidden, limit, weights, rows, path, down.order)
    return expert_linear_triton(activated, down, rows, tile), rows


def order_experts(
    x: Tensor | Arrivals,
    ids: Tensor,
    num_experts: int,
    tile_rows: int,
    path: MatrixPath,
    order: KOrder,
    slots: Slots | None,
) -> tuple[ExpertRows, Activations]:
    """``order_tokens`` of x [T, d] bf16, or of tokens that arrived from other ranks."""
    if isinstance(x, Tensor):
        return order_tokens(x, ids, num_experts, tile_rows, path, order, slots)
    rows = order_pairs(ids, num_experts, tile_rows)
    return rows, x.activations(path, order, rows)


def sum_of_pairs(outputs: Tensor, rows: ExpertRows) -> Tensor:
    """Sum of each token's rows of [R, N] bf16 in the order of its experts: [T, N] f32."""
    return sum_rows_triton(outputs, rows.row, rows.per_token)


def sum_rows_triton(
    rows: Tensor, row: Tensor, per_token: int, dtype: torch.dtype = torch.float32
) -> Tensor:
    """As ``sum_rows_reference``.  Raises: TensorError, also if ``per_token`` does not divide
    ``row``."""
    check_tensor("rows", rows, torch.bfloat16, (None, None), row)
    check_tensor("row", row, torch.int32, (None,), rows)
    if per_token < 1 or len(row) % per_token:
        raise TensorError(f"row: expected {per_token} of each token, found {describe(row)}")
    tokens, width = len(row) // per_token, rows.shape[1]
    out = torch.empty(tokens, width, dtype=dtype, device=rows.device)
    is_bf16 = dtype is torch.bfloat16
    if tokens:
        launch(_sum_kernel, (tokens, cdiv(width, _COLUMNS)))(
            rows, row, out.view(torch.int16) if is_bf16 else out, width, per_token,
            COLUMNS=_COLUMNS, BF16=is_bf16, enable_fp_fusion=True,
        )  # fmt: skip
    return out


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
