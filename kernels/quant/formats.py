"""The three quantizers of the model, each as (values, scales) and as a rounded copy of its input.

E4M3 has magnitudes up to 448 with 3 mantissa bits, E2M1 has {0, .5, 1, 1.5, 2, 3, 4, 6}.  An E8M0
scale is a power of two, stored as its biased exponent.  ``fake_quantize_*`` quantizes and
dequantizes; training can wrap it in a straight-through estimator.
All are batch-invariant: every block is rounded independently.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.kernels.numeric import constant, split_last

FP8_BLOCK = 32
FP4_BLOCK = 32
FP4_E4M3_BLOCK = 16

_FP8_MAX = 448.0
_FP4_MAX = 6.0
_FP8_MIN_AMAX = 1e-4
_FP4_MIN_AMAX = 6.0 * 2.0**-126
_FP4_E4M3_MIN_AMAX = 6.0 * 2.0**-9

_EXPONENT_BITS = 0x7F800000
_MANTISSA_BITS = 0x007FFFFF
# Blocks with infinity unpack to finite values, too: 480 * 2 ** (246 - 127) fits in fp32.
_MAX_EXPONENT = 246


def quantize_fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Activations and window KV: E4M3 with one E8M0 scale per 32 values.

    Shapes: x [..., K] float; returns values [..., K] e4m3fn and exponents [..., K/32] u8.
    Numerics: the scale is the next power of two at or above amax / 448, amax at least 1e-4.
    Source: the released inference code (act_quant).
    """
    values, scales = _scaled_fp8(x)
    return values.to(torch.float8_e4m3fn).flatten(-2), _biased_exponents(scales)


def fake_quantize_fp8(x: Tensor) -> Tensor:
    """``x`` rounded as by ``quantize_fp8``; [..., K] in the dtype of ``x`` (exact in bf16)."""
    values, scales = _scaled_fp8(x)
    return (_round_e4m3(values) * scales).flatten(-2).to(x.dtype)


def quantize_fp4(x: Tensor) -> tuple[Tensor, Tensor]:
    """Index queries and keys: E2M1 with one E8M0 scale per 32 values.

    Shapes: x [..., K] float; returns codes [..., K] u8, sign in bit 3, and exponents [..., K/32]
    u8.
    """
    values, scales = _scaled_fp4(x)
    return _e2m1_codes(values).flatten(-2), _biased_exponents(scales)


def fake_quantize_fp4(x: Tensor) -> Tensor:
    """``x`` rounded as by ``quantize_fp4``; [..., K] in the dtype of ``x`` (exact in bf16)."""
    values, scales = _scaled_fp4(x)
    return (values * scales).flatten(-2).to(x.dtype)


def quantize_fp4_e4m3(x: Tensor) -> tuple[Tensor, Tensor]:
    """Compressed main KV: E2M1 with one E4M3 scale per 16 values and no second-level scale.

    Shapes: x [..., K] float; returns codes [..., K] u8 and scales [..., K/16] e4m3fn.
    """
    values, scales = _scaled_fp4_e4m3(x)
    return _e2m1_codes(values).flatten(-2), scales[..., 0]


def fake_quantize_fp4_e4m3(x: Tensor) -> Tensor:
    """``x`` rounded as by ``quantize_fp4_e4m3``; [..., K] in the dtype of ``x`` (exact in bf16)."""
    values, scales = _scaled_fp4_e4m3(x)
    return (values * scales.float()).flatten(-2).to(x.dtype)


def power_of_two(exponents: Tensor) -> Tensor:
    """``2 ** (exponents - 127)`` in fp32 for biased exponents 1 to 254 (integers), 0 for 0."""
    return (exponents.to(torch.int32) << constant(23, torch.int32)).view(torch.float32)


def _scaled_fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """x / scale, clamped, [..., K/32, 32] f32, and the scales [..., K/32, 1] f32."""
    blocks = split_last(x.float(), FP8_BLOCK)
    amax = torch.maximum(blocks.abs().amax(-1, keepdim=True), constant(_FP8_MIN_AMAX))
    scales = _power_of_two_above(amax * constant(1.0 / _FP8_MAX))
    return (blocks / scales).clamp(-_FP8_MAX, _FP8_MAX), scales


def _scaled_fp4(x: Tensor) -> tuple[Tensor, Tensor]:
    blocks = split_last(x.float(), FP4_BLOCK)
    amax = torch.maximum(blocks.abs().amax(-1, keepdim=True), constant(_FP4_MIN_AMAX))
    scales = _power_of_two_above(amax * constant(1.0 / _FP4_MAX))
    return _round_e2m1(blocks / scales), scales


def _scaled_fp4_e4m3(x: Tensor) -> tuple[Tensor, Tensor]:
    blocks = split_last(x.float(), FP4_E4M3_BLOCK)
    amax = torch.maximum(blocks.abs().amax(-1, keepdim=True), constant(_FP4_E4M3_MIN_AMAX))
    scales = (amax / constant(_FP4_MAX)).clamp(max=_FP8_MAX).to(torch.float8_e4m3fn)
    return _round_e2m1(blocks / scales.float()), scales


def _power_of_two_above(x: Tensor) -> Tensor:
    """The smallest power of two at or above a positive normal fp32."""
    bits = x.view(torch.int32) + constant(_MANTISSA_BITS, torch.int32)
    return (bits & constant(_EXPONENT_BITS, torch.int32)).view(torch.float32)


def _biased_exponents(scales: Tensor) -> Tensor:
    """Powers of two [..., 1] f32 -> [...] u8."""
    exponents = scales[..., 0].view(torch.int32) >> constant(23, torch.int32)
    return exponents.clamp(max=_MAX_EXPONENT).to(torch.uint8)


def _round_e4m3(x: Tensor) -> Tensor:
    """Nearest E4M3 value of magnitudes up to 448, ties to even; NaN passes through.

    Adding a large enough number makes fp32 round to the spacing of E4M3 at that magnitude (1/8 of
    the power of two below, at least 2**-9); subtracting it again is exact.  On a CPU this is many
    times faster than torch's conversions.
    """
    power = (x.view(torch.int32) & constant(_EXPONENT_BITS, torch.int32)).view(torch.float32)
    shift = power.clamp(min=2.0**-6) * constant(1.5 * 2.0**20)
    return (x + shift) - shift


def _round_e2m1(x: Tensor) -> Tensor:
    """Nearest E2M1 value, ties to the even code; saturates at 6."""
    clamped = x.clamp(-_FP4_MAX, _FP4_MAX)
    magnitude = clamped.abs()
    step = torch.where(magnitude < 2.0, 0.5, torch.where(magnitude < 4.0, 1.0, 2.0))
    return torch.round(clamped / step) * step


def _e2m1_codes(values: Tensor) -> Tensor:
    """Codes 0..7 of E2M1 magnitudes, sign in bit 3, [...] u8."""
    magnitude = values.abs()
    upper = torch.where(magnitude < 4.0, magnitude + 2.0, magnitude * 0.5 + 4.0)
    code = torch.where(magnitude < 2.0, magnitude * 2.0, upper)
    return code.to(torch.uint8) | (torch.signbit(values).to(torch.uint8) << 3)
