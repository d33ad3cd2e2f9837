"""Packed cache rows: a row's values followed by its scales, as contiguous bytes.

| row    | values                    | scales            | bytes     | 512 (128) wide |
| window | E4M3, one byte each       | E8M0 per 32       | D + D/32  | 528            |
| main   | E2M1, low nibble is even  | E4M3 per 16       | D/2 + D/16| 288            |
| index  | E2M1, low nibble is even  | E8M0 per 32       | D/2 + D/32| (68)           |
Unpacked values are exact in bf16 and returned as fp32.  They are finite whatever was packed,
including NaN and infinity, so a row that a query does not attend to cannot affect it by 0 * NaN.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from deepinfer.kernels.numeric import constant, split_last

from .formats import (
    FP4_BLOCK,
    FP4_E4M3_BLOCK,
    FP8_BLOCK,
    power_of_two,
    quantize_fp4,
    quantize_fp4_e4m3,
    quantize_fp8,
)


def pack_window_rows(x: Tensor) -> Tensor:
    """Shapes: x [..., D] float; returns [..., D + D/32] u8."""
    values, exponents = quantize_fp8(x)
    return torch.cat([values.view(torch.uint8), exponents], dim=-1)


def unpack_window_rows(rows: Tensor) -> Tensor:
    """Shapes: rows [..., D + D/32] u8; returns [..., D] f32."""
    dim = rows.shape[-1] * FP8_BLOCK // (FP8_BLOCK + 1)
    values = split_last(decode_e4m3(rows[..., :dim]), FP8_BLOCK)
    return values.mul_(power_of_two(rows[..., dim:])[..., None]).flatten(-2)


def pack_main_rows(x: Tensor) -> Tensor:
    """Shapes: x [..., D] float; returns [..., D/2 + D/16] u8."""
    codes, scales = quantize_fp4_e4m3(x)
    return torch.cat([pack_nibbles(codes), scales.view(torch.uint8)], dim=-1)


def unpack_main_rows(rows: Tensor) -> Tensor:
    """Shapes: rows [..., D/2 + D/16] u8; returns [..., D] f32."""
    half = rows.shape[-1] * 8 // 9
    values = split_last(decode_e2m1(rows[..., :half]), FP4_E4M3_BLOCK)
    return values.mul_(decode_e4m3(rows[..., half:])[..., None]).flatten(-2)


def pack_index_rows(x: Tensor) -> Tensor:
    """Shapes: x [..., D] float; returns [..., D/2 + D/32] u8."""
    codes, exponents = quantize_fp4(x)
    return torch.cat([pack_nibbles(codes), exponents], dim=-1)


def unpack_index_rows(rows: Tensor) -> Tensor:
    """Shapes: rows [..., D/2 + D/32] u8; returns [..., D] f32."""
    half = rows.shape[-1] * 16 // 17
    values = split_last(decode_e2m1(rows[..., :half]), FP4_BLOCK)
    return values.mul_(power_of_two(rows[..., half:])[..., None]).flatten(-2)


def pack_nibbles(codes: Tensor) -> Tensor:
    """Two E2M1 codes per byte, the even one in the low nibble: [..., K] u8 -> [..., K/2] u8."""
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def decode_e4m3(values: Tensor) -> Tensor:
    """Values of E4M3 bytes, [...] u8 -> [...] f32.

    Exponent and mantissa bits are moved into an fp32, whose bias is corrected by one exact
    multiplication, also for subnormals; the byte of NaN decodes to 480.  On a CPU this is several
    times faster than torch's conversion.
    """
    bits = values.view(torch.int8).to(torch.int32).bitwise_left_shift_(constant(20, torch.int32))
    bits.bitwise_and_(constant(-0x78100000, torch.int32))
    return bits.view(torch.float32).mul_(constant(2.0**120))


def decode_e2m1(packed: Tensor) -> Tensor:
    """Values of packed E2M1 bytes, [..., K/2] u8 -> [..., K] f32."""
    pairs = _e2m1_pairs(packed.device).index_select(0, packed.reshape(-1).to(torch.int32))
    return pairs.view(torch.float32).view(*packed.shape[:-1], 2 * packed.shape[-1])


@cache
def _e2m1_pairs(device: torch.device) -> Tensor:
    """Lookup table [256] i64: the two values of every byte as a pair of fp32."""
    magnitudes = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    values = torch.cat([magnitudes, -magnitudes])
    byte = torch.arange(256)
    pairs = torch.stack([values[byte & 15], values[byte >> 4]], dim=-1)
    return pairs.view(torch.int64).flatten().to(device)
