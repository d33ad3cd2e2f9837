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
