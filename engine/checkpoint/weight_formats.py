"""Encodes weights in the checkpoint's number formats: FP8 in 32 x 32 tiles, FP4 in rows of 32.

A scale is the smallest power of two with which every value fits, stored as E8M0.  Unlike in the
quantization of activations, there is no minimum scale, so small weights keep their precision.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.engine.model.config_checks import QUANT_BLOCK
from deepinfer.kernels.quant import quantize_fp4
from deepinfer.kernels.quant.formats import power_of_two
from deepinfer.kernels.quant.rows import pack_nibbles

E4M3_MAX = 448.0


def encode_fp8_tiles(weight: Tensor) -> tuple[Tensor, Tensor]:
    """weight [N, K] float -> values [N, K] e4m3, scale [N/32, K/32] e8m0."""
    rows, columns = weight.shape
    tiles = weight.float().view(
        rows // QUANT_BLOCK, QUANT_BLOCK, columns // QUANT_BLOCK, QUANT_BLOCK
    )
    exponents = _exponents(tiles.abs().amax(dim=(1, 3)))
    values = (tiles / power_of_two(exponents)[:, None, :, None]).to(torch.float8_e4m3fn)
    return values.view(rows, columns), exponents.to(torch.uint8).view(torch.float8_e8m0fnu)


def encode_fp8_rows(table: Tensor) -> tuple[Tensor, Tensor]:
    """table [N, K] float -> values [N, K] e4m3, scale [N, K/32] e8m0 (Engram tables)."""
    blocks = table.float().view(table.shape[0], -1, QUANT_BLOCK)
    exponents = _exponents(blocks.abs().amax(dim=2))
    values = (blocks / power_of_two(exponents)[..., None]).to(torch.float8_e4m3fn)
    return values.view(table.shape), exponents.to(torch.uint8).view(torch.float8_e8m0fnu)


def encode_fp4_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """weight [N, K] float -> packed [N, K/2] i8 (even input in the low nibble), scale [N, K/32]
    e8m0.  Rounds to nearest, ties to the even code."""
    codes, exponents = quantize_fp4(weight)
    return pack_nibbles(codes).view(torch.int8), exponents.view(torch.float8_e8m0fnu)


def _exponents(amax: Tensor) -> Tensor:
    """Biased exponent of the smallest power of two s with amax <= 448 * s, i32, 1 to 254.

    The rounded quotient is never on the wrong side of a power of two: 448 is 1.75 * 2**8.
    """
    mantissa, exponent = torch.frexp(amax / E4M3_MAX)
    exponent = torch.where(mantissa == 0.5, exponent - 1, exponent)
    return torch.where(amax > 0, exponent + 127, 1).clamp(1, 254)
