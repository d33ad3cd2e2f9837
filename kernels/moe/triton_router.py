"""The router in Triton: products with its weight, and the choice of experts by their scores.

T tokens, E experts, K chosen per token, d model width.  Logits are sums over parts of d, so that
few columns keep a device busy.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.errors import TensorError
from deepinfer.kernels.gemm import Weight, fp32_linear_parts
from deepinfer.kernels.launch import check_tensor, is_npu, next_power_of_2
from deepinfer.kernels.relaunch import launch

from .slots import Slots
from .triton_choice import choice_kernel

_PARTS = 4


def route_triton(
    x: Tensor,
    gate: Weight,
    bias: Tensor,
    *,
    num_experts_per_tok: int,
    normalize: bool,
    scaling_factor: float,
    slots: Slots | None = None,
    logits: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """As ``route_reference``.  A row with NaN scores gets valid ids and NaN weights.

    ``slots``: filled in passing.  ``logits`` [T, P, E] f32 in P parts, if they are known; then the
    totals of ``slots`` are zero.
    """
    rows, experts = len(x), len(gate.values)
    check_tensor("bias", bias, torch.float32, (experts,) if bias.dim() == 1 else (rows, experts), x)
    if not 0 < num_experts_per_tok <= experts:
        raise TensorError(f"route: cannot choose {num_experts_per_tok} of {experts} experts")
    ids = torch.empty(rows, num_experts_per_tok, dtype=torch.int64, device=x.device)
    weights = torch.empty(rows, num_experts_per_tok, dtype=torch.float32, device=x.device)
    # Two powers of two that hold all experts with less to spare than one.
    first = max(16, next_power_of_2(experts) // 2)
    rest = max(16, next_power_of_2(max(1, experts - first)))
    choice = {
        "CHOSEN": num_experts_per_tok,
        "CHOSEN_PADDED": next_power_of_2(num_experts_per_tok),
        "FIRST": first,
        "REST": rest,
        "NORMALIZE": normalize and num_experts_per_tok > 1,
        "IS_GPU": not is_npu(x.device),
        "IS_FULL": experts == first + rest,
        "SLOTS": slots is not None,
    }
    if not rows:
        return ids, weights
    slot = total = ids
    if slots is not None:
        slot, total = slots.slot, slots.total
        check_tensor("slot", slot, torch.int32, tuple(ids.shape), ids)
        check_tensor("total", total, torch.int32, (experts,), ids)
    if logits is None:
        logits = fp32_linear_parts(x, gate, router_parts(x), None if slots is None else total)
    launch(choice_kernel, (rows,))(
        logits, bias, ids, weights, slot, total,
        0 if bias.dim() == 1 else experts, rows, experts, scaling_factor,
        **choice, PARTS=logits.shape[1], num_warps=1, enable_fp_fusion=True,
    )  # fmt: skip
    return ids, weights


def router_parts(x: Tensor) -> int:
    """In how many parts of d logits are summed, whatever the number of tokens."""
    return _PARTS if x.shape[1] % (64 * _PARTS) == 0 else 1
