"""Gated pooling in plain torch: the specification."""

from __future__ import annotations

import torch
from torch import Tensor


def pool_pairs_reference(first: Tensor, second: Tensor) -> Tensor:
    """Mean of two tokens' keys, weighted per channel by the softmax of their gates.

    Shapes: first and second [N, 2, D] f32 (key, gate) of the earlier and later token; returns
    [N, D] bf16.  Batch-invariant: yes.
    """
    highest = torch.maximum(first[:, 1], second[:, 1])
    early = torch.exp(first[:, 1] - highest)
    late = torch.exp(second[:, 1] - highest)
    total = early + late
    pooled = first[:, 0] * (early / total) + second[:, 0] * (late / total)
    return pooled.to(torch.bfloat16)


def pool_tokens_reference(
    key_gate: Tensor,
    ring: Tensor,
    slots: Tensor,
    positions: Tensor,
    offsets: Tensor,
    places: Tensor,
) -> Tensor:
    """``pool_pairs`` of each token and its predecessor, which may be from an earlier pass.

    Shapes: key_gate [T, 2, D] f32 of this pass; ring [num_slots, H, 2, D] f32 of earlier passes, a
    ring buffer per request with position p at p % H; slots, positions, offsets (index among its
    request's tokens in this pass) and places (row in ``key_gate``) [T] i64; returns [T, D] bf16.
    Batch-invariant: yes.
    """
    earlier = ring[slots, (positions - 1) % ring.shape[1]]
    first = torch.where((offsets > 0)[:, None, None], key_gate[places - 1], earlier)
    return pool_pairs_reference(first, key_gate)
