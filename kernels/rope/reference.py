"""Rotary embedding in plain torch: the specification."""

from __future__ import annotations

import torch
from torch import Tensor


def apply_rope_reference(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool = False) -> Tensor:
    """Rotate the last ``2 * cos.shape[-1]`` dimensions of each row, as adjacent pairs.

    Shapes: x [T, ..., D] bf16, cos and sin [T, R/2] f32; returns x's shape, bf16.
    ``inverse`` turns back.  Numerics: fp32, one rounding.  Batch-invariant: yes.
    """
    rotary = 2 * cos.shape[-1]
    shape = (cos.shape[0],) + (1,) * (x.dim() - 2) + (cos.shape[1],)
    cos, sin = cos.view(shape), sin.view(shape)
    if inverse:
        sin = -sin
    even, odd = x[..., -rotary:].float().unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1)
    return torch.cat([x[..., :-rotary], turned.flatten(-2).to(x.dtype)], dim=-1)
