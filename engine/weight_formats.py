"""Weights into the checkpoint's number formats: FP8 in 32 x 32 tiles, FP4 in rows of 32.

Scales are powers of two, stored as E8M0; the smallest one that lets every value fit.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 32
E4M3_MAX = 448.0
E2M1_MAX = 6.0
MIN_EXPONENT = -126
# Midpoints between neighbouring E2M1 magnitudes 0, .5, 1, 1.5, 2, 3, 4, 6.
E2M1_MIDPOINTS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)


def encode_fp8_tiles(weight: Tensor) -> tuple[Tensor, Tensor]:
    """weight [N, K] float -> values [N, K] e4m3, scale [N/32, K/32] e8m0."""
    rows, columns = weight.shape
    tiles = weight.float().view(rows // BLOCK, BLOCK, columns // BLOCK, BLOCK)
    exponent = _exponent(tiles.abs().amax(dim=(1, 3)), E4M3_MAX)
    values = (tiles / _power(exponent)[:, None, :, None]).to(torch.float8_e4m3fn)
    return values.view(rows, columns), _e8m0(exponent)


def encode_fp8_rows(table: Tensor) -> tuple[Tensor, Tensor]:
    """table [N, K] float -> values [N, K] e4m3, scale [N, K/32] e8m0 (Engram tables)."""
    blocks = table.float().view(table.shape[0], -1, BLOCK)
    exponent = _exponent(blocks.abs().amax(dim=2), E4M3_MAX)
    values = (blocks / _power(exponent)[..., None]).to(torch.float8_e4m3fn)
    return values.view(table.shape), _e8m0(exponent)


def encode_fp4_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """weight [N, K] float -> packed [N, K/2] i8 (even input in the low nibble), scale [N, K/32]
    e8m0.  Rounds to nearest, ties to the even code."""
    rows, columns = weight.shape
    blocks = weight.float().view(rows, columns // BLOCK, BLOCK)
    exponent = _exponent(blocks.abs().amax(dim=2), E2M1_MAX)
    codes = _e2m1_codes(blocks / _power(exponent)[..., None]).view(rows, columns)
    packed = codes[:, 0::2] | (codes[:, 1::2] << 4)
    return packed.view(torch.int8), _e8m0(exponent)


def _e2m1_codes(values: Tensor) -> Tensor:
    magnitude = values.abs()
    midpoints = torch.tensor(E2M1_MIDPOINTS, device=values.device)
    below = torch.bucketize(magnitude, midpoints, out_int32=True)
    above = torch.bucketize(magnitude, midpoints, out_int32=True, right=True)
    # Exactly on a midpoint the two searches differ by one: take the even code.
    code = torch.where(below % 2 == 0, below, above).to(torch.uint8)
    return code | (torch.signbit(values).to(torch.uint8) << 3)


def _exponent(amax: Tensor, largest: float) -> Tensor:
    """Smallest e with amax <= largest * 2**e, as i32, within the normal numbers of fp32.

    The rounded quotient is on the right side of a power of two for both formats' maxima.
    """
    mantissa, exponent = torch.frexp(amax / largest)
    exponent = torch.where(mantissa == 0.5, exponent - 1, exponent)
    return torch.where(amax > 0, exponent, MIN_EXPONENT).clamp(MIN_EXPONENT, -MIN_EXPONENT)


def _power(exponent: Tensor) -> Tensor:
    """2**exponent, exact, made from its bits: a library ``pow`` may be one unit off."""
    return ((exponent + 127) << 23).view(torch.float32)


def _e8m0(exponent: Tensor) -> Tensor:
    return (exponent + 127).to(torch.uint8).view(torch.float8_e8m0fnu)
