"""Packed weights of the released format, and what they mean."""

from __future__ import annotations

import torch
from torch import Tensor

from .rows import decode_e2m1

TILE = 32


def dequantize_weight(values: Tensor, scales: Tensor) -> Tensor:
    """A weight as numbers; exact in bf16 because every scale is a power of two.

    Shapes: values [..., N, K] e4m3fn with scales [..., N/32, K/32] e8m0fnu, or values
    [..., N, K/2] int8 (two E2M1, low nibble even) with scales [..., N, K/32] e8m0fnu;
    returns [..., N, K] bf16.
    """
    factors = scales.view(torch.float8_e8m0fnu).float()
    if values.dtype == torch.float8_e4m3fn:
        tiles = values.float().unflatten(-1, (-1, TILE)).unflatten(-3, (-1, TILE))
        scaled = tiles * factors[..., :, None, :, None]
        return scaled.flatten(-2).flatten(-3, -2).to(torch.bfloat16)
    blocks = decode_e2m1(values.view(torch.uint8)).unflatten(-1, (-1, TILE))
    return (blocks * factors[..., None]).flatten(-2).to(torch.bfloat16)
