"""The dispatched bytes of a token: FP8 activations, scales, and its experts at the receiver."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.kernels.quant import quantize_fp8

_BLOCK = 32
_CHOICE_BYTES = 8


def payload_bytes(hidden_size: int, num_choices: int) -> int:
    """Bytes per token: e4m3 values, e8m0 scales, and (i32 index, f32 weight) per expert."""
    return hidden_size + hidden_size // _BLOCK + num_choices * _CHOICE_BYTES


def quantize_rows(x: Tensor) -> Tensor:
    """x [T, d] bf16 -> [T, d + d/32] u8.  Experts quantize their inputs in the same way, so these
    bytes give them exactly the same inputs."""
    values, exponents = quantize_fp8(x)
    return torch.cat([values.view(torch.uint8), exponents], dim=-1)


def pack(quantized: Tensor, places: Tensor, weights: Tensor) -> Tensor:
    """Rows [N, bytes] u8 from ``quantize_rows`` output, places [N, K] i64, weights [N, K] f32."""
    return torch.cat([quantized, _bytes(places.int()), _bytes(weights)], dim=-1)


def unpack(rows: Tensor, hidden_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """The inverse of ``pack``: x [N, d] bf16, places [N, K] i64, weights [N, K] f32."""
    num_scales = hidden_size // _BLOCK
    num_choices = (rows.shape[1] - hidden_size - num_scales) // _CHOICE_BYTES
    sizes = [hidden_size, num_scales, 4 * num_choices, 4 * num_choices]
    # Copies, since a view with a wider dtype must be aligned to its size.
    values, exponents, places, weights = map(_copy, torch.split(rows, sizes, dim=-1))
    scales = (exponents.to(torch.int16) << 7).view(torch.bfloat16)  # the exponent bits of a bf16
    codes = values.view(torch.float8_e4m3fn).to(torch.bfloat16)
    x = codes.view(len(rows), num_scales, _BLOCK) * scales[..., None]
    return (
        x.view(len(rows), hidden_size),
        places.view(torch.int32).to(torch.int64),
        weights.view(torch.float32),
    )


def _bytes(tensor: Tensor) -> Tensor:
    return _copy(tensor).view(torch.uint8)


def _copy(tensor: Tensor) -> Tensor:
    """A densely packed copy, even if a dimension of size one has an odd stride."""
    return tensor.clone(memory_format=torch.contiguous_format)
