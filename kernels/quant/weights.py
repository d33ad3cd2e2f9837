"""Dequantization of packed weights in the released format."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.kernels.numeric import split_last

from .rows import decode_e2m1

TILE = 32


def dequantize_weight(values: Tensor, scales: Tensor) -> Tensor:
    """Dequantize a weight; exact in bf16 because every scale is a power of two.

    Shapes: values [..., N, K] e4m3fn with scales [..., N/32, K/32] e8m0fnu, or values
    [..., N, K/2] int8 (two E2M1, low nibble even) with scales [..., N, K/32] e8m0fnu;
    returns [..., N, K] bf16.
    """
    factors = scales.view(torch.float8_e8m0fnu).float()
    if values.dtype == torch.float8_e4m3fn:
        rows = factors.repeat_interleave(TILE, dim=-2)
        return (split_last(values.float(), TILE) * rows[..., None]).flatten(-2).to(torch.bfloat16)
    blocks = split_last(decode_e2m1(values.view(torch.uint8)), TILE)
    return (blocks * factors[..., None]).flatten(-2).to(torch.bfloat16)
