"""Rotary embedding in plain torch: the specification."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.kernels.numeric import split_last


def apply_rope_reference(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool = False) -> Tensor:
    """Rotate the last R dimensions of each row, as adjacent pairs.

    Shapes: x [T, ..., D] bf16, cos and sin [T, R] f32 from ``rope_table``; returns x's shape, bf16.
    ``inverse`` rotates back.  Numerics: fp32, one rounding.  Batch-invariant: yes.
    """
    rotary = cos.shape[-1]
    shape = (cos.shape[0],) + (1,) * (x.dim() - 2) + (rotary,)
    pairs = x[..., -rotary:].float()
    swapped = split_last(pairs, 2).flip(-1).view(pairs.shape)
    cross = swapped * sin.view(shape)
    rotated = pairs * cos.view(shape)
    rotated = rotated - cross if inverse else rotated + cross
    return torch.cat([x[..., :-rotary], rotated.to(x.dtype)], dim=-1)
