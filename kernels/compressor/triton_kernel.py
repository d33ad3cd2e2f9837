"""Gated pooling of each token with its predecessor, in Triton: one program per token."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.kernels.launch import check_tensor, next_power_of_2, sizes
from deepinfer.kernels.quant.triton_bits import bf16_bits
from deepinfer.kernels.relaunch import launch


def pool_tokens_triton(
    key_gate: Tensor,
    ring: Tensor,
    slots: Tensor,
    positions: Tensor,
    offsets: Tensor,
    places: Tensor,
) -> Tensor:
    """``pool_tokens_reference``.

    Raises: TensorError for a wrong dtype, shape, device or layout.
    """
    tokens, _, width = sizes("key_gate", key_gate, 3)
    check_tensor("key_gate", key_gate, torch.float32, (tokens, 2, width), ring)
    check_tensor("ring", ring, torch.float32, (None, None, 2, width), ring)
    for name, numbers in (
        ("slots", slots),
        ("positions", positions),
        ("offsets", offsets),
        ("places", places),
    ):
        check_tensor(name, numbers, torch.int64, (tokens,), ring)
    out = torch.empty(tokens, width, dtype=torch.bfloat16, device=key_gate.device)
    if tokens:
        launch(pool_kernel, (tokens,))(
            key_gate, ring, slots, positions, offsets, places, out.view(torch.int16),
            RING=ring.shape[1], WIDTH=width, TILE=next_power_of_2(width),
            num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
    return out


@triton.jit
def pool_kernel(
    key_gate_ptr, ring_ptr, slots_ptr, positions_ptr, offsets_ptr, places_ptr, out_ptr,
    RING: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, TILE)
    mask = column < WIDTH
    late_key = tl.load(key_gate_ptr + token * (2 * WIDTH) + column, mask=mask, other=0.0)
    late_gate = tl.load(key_gate_ptr + token * (2 * WIDTH) + WIDTH + column, mask=mask, other=0.0)
    # One of two rows is read, by masks: Ascend's Linalg does not support a select of pointers.
    from_own = tl.where(tl.load(offsets_ptr + token) > 0, WIDTH, 0)
    is_own, is_kept = column < from_own, column < WIDTH - from_own
    own = key_gate_ptr + (tl.load(places_ptr + token) - 1) * (2 * WIDTH)
    place = (tl.load(positions_ptr + token) + (RING - 1)) % RING
    kept = ring_ptr + (tl.load(slots_ptr + token) * RING + place) * (2 * WIDTH)
    early_key = tl.load(own + column, mask=is_own, other=0.0)
    early_key += tl.load(kept + column, mask=is_kept, other=0.0)
    early_gate = tl.load(own + WIDTH + column, mask=is_own, other=0.0)
    early_gate += tl.load(kept + WIDTH + column, mask=is_kept, other=0.0)
    highest = tl.maximum(early_gate, late_gate)
    early, late = tl.exp(early_gate - highest), tl.exp(late_gate - highest)
    total = early + late
    pooled = early_key * (early / total) + late_key * (late / total)
    tl.store(out_ptr + token * WIDTH + column, bf16_bits(pooled).to(tl.int16), mask=mask)
