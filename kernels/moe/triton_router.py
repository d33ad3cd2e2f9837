"""The router in Triton: a split-K GEMM with its weight, and the selection of experts by score.

T tokens, E experts, top K per token, d model width.  K of the GEMM is split because its few columns
would not fill a device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deepinfer.errors import TensorError
from deepinfer.kernels.gemm import Weight, fp32_linear_parts
from deepinfer.kernels.launch import (
    bf16_pairs,
    cdiv,
    check_tensor,
    is_npu,
    next_power_of_2,
    sizes,
)
from deepinfer.kernels.relaunch import launch

from .pages import Pages
from .slots import Slots
from .triton_choice import choice_kernel
from .triton_pages import LISTED, page_tokens_kernel

_PARTS = 4
_SLICE = 1024  # values of a token that one warp quantizes


def route_triton(
    x: Tensor,
    gate: Weight,
    bias: Tensor,
    *,
    num_experts_per_tok: int,
    normalize: bool,
    scaling_factor: float,
    slots: Slots | Pages | None = None,
    logits: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """As ``route_reference``.  A row with NaN scores gets valid ids and NaN weights.

    ``slots`` are filled, ``Pages`` also with the quantized x.  ``logits`` [T, P, E] f32 in P
    split-K parts, if already computed; then ``slots.preset`` must be initialized, too.
    """
    (rows, _), (experts, _) = sizes("x", x, 2), sizes("gate", gate.values, 2)
    check_tensor("bias", bias, torch.float32, (experts,) if bias.dim() == 1 else (rows, experts), x)
    if not 0 < num_experts_per_tok <= experts:
        raise TensorError(f"route: cannot select {num_experts_per_tok} of {experts} experts")
    ids = torch.empty(rows, num_experts_per_tok, dtype=torch.int64, device=x.device)
    weights = torch.empty(rows, num_experts_per_tok, dtype=torch.float32, device=x.device)
    if not rows:
        return ids, weights
    if isinstance(slots, Pages):
        check_tensor("row", slots.rows.row, torch.int32, (ids.numel(),), ids)
        check_tensor("last_slot", slots.last_slot, torch.int32, (experts,), ids)
    elif slots is not None:
        check_tensor("slot", slots.slot, torch.int32, tuple(ids.shape), ids)
        check_tensor("total", slots.total, torch.int32, (experts,), ids)
    if logits is None:
        preset = None if slots is None else slots.preset
        logits = fp32_linear_parts(x, gate, router_parts(x), preset)
    # Two power-of-two tiles cover all experts with less padding than one.
    first = max(16, next_power_of_2(experts) // 2)
    rest = max(16, next_power_of_2(max(1, experts - first)))
    choice = {
        "TOP_K": num_experts_per_tok,
        "TOP_K_PADDED": next_power_of_2(num_experts_per_tok),
        "FIRST": first,
        "REST": rest,
        "PARTS": logits.shape[1],
        "NORMALIZE": normalize and num_experts_per_tok > 1,
        "IS_FULL": experts == first + rest,
    }
    outputs = logits, bias, ids, weights
    numbers = 0 if bias.dim() == 1 else experts, rows, experts, scaling_factor
    if isinstance(slots, Pages):
        _launch_in_pages(x, slots, outputs, numbers, choice)
    else:
        slot, total = (ids, ids) if slots is None else (slots.slot, slots.total)
        launch(choice_kernel, (rows,))(
            *outputs, slot, total, *numbers,
            **choice, IS_GPU=not is_npu(x.device), SLOTS=slots is not None, num_warps=1,
            enable_fp_fusion=True,
        )  # fmt: skip
    return ids, weights


def _launch_in_pages(
    x: Tensor,
    pages: Pages,
    outputs: tuple[Tensor, ...],
    numbers: tuple[float, ...],
    choice: dict[str, Any],
) -> None:
    """Select experts and store x [T, d], quantized, to ``pages``."""
    rows, acts, pairs = pages.rows, pages.acts, bf16_pairs("x", x)
    layout = acts.layout
    width = _SLICE // layout["BLOCK"]
    experts, slices = pages.page.shape[0], cdiv(layout["NUM_BLOCKS"], width)
    launch(page_tokens_kernel, (len(x) * (1 + slices) + cdiv(experts, LISTED.value),))(
        *outputs, pages.last_slot, pages.page, pages.last_page,
        rows.pair, rows.row, rows.expert, rows.used,
        pairs, *acts.writer, acts.scale_stride, pairs.shape[1], pairs.stride(0),
        pages.page.shape[1], *numbers,
        **choice, EXPERTS=next_power_of_2(experts), TILE_ROWS=rows.tile_rows, WIDTH=width, **layout,
        num_warps=1, enable_fp_fusion=True,
    )  # fmt: skip


def router_parts(x: Tensor) -> int:
    """Number of split-K parts of the router GEMM; does not depend on the number of tokens."""
    _, width = sizes("x", x, 2)
    return _PARTS if width % (64 * _PARTS) == 0 else 1
