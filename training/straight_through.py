"""Quantizers with straight-through gradients, and compilation of small functions on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from training.pointwise import round_fp8

from deepinfer.engine.checkpoint.weight_formats import (
    encode_fp4_rows,
    encode_fp8_rows,
    encode_fp8_tiles,
)
from deepinfer.kernels.quant.formats import fake_quantize_fp4, fake_quantize_fp4_e4m3
from deepinfer.kernels.quant.weights import dequantize_weight


class _Rounded(torch.autograd.Function):
    """``quantise(x)`` forward, the identity backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, quantise: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.dtype = x.dtype
        return quantise(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0].to(ctx.dtype), None


@cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function compiled by ``torch.compile`` if there is a GPU; unchanged on a CPU."""
    if not torch.cuda.is_available():
        return function
    torch._dynamo.config.suppress_errors = True  # a function that does not compile runs as it is
    return torch.compile(function)


def fp8(x: Tensor) -> Tensor:
    """Activations and window KV, rounded as in the model; [..., K]."""
    return _Rounded.apply(x, compiled(round_fp8))


def fp4(x: Tensor) -> Tensor:
    """Index queries and keys."""
    return _Rounded.apply(x, fake_quantize_fp4)


def fp4_e4m3(x: Tensor) -> Tensor:
    """Compressed main KV."""
    return _Rounded.apply(x, fake_quantize_fp4_e4m3)


def fp8_weight(weight: Tensor) -> Tensor:
    """[..., N, K] f32 master -> bf16 values of its 32 x 32 FP8 form."""
    return _Rounded.apply(weight, lambda w: _through(encode_fp8_tiles, w))


def fp4_weight(weight: Tensor) -> Tensor:
    """[..., N, K] f32 master -> bf16 values of its FP4 form."""
    return _Rounded.apply(weight, lambda w: _through(encode_fp4_rows, w))


def fp8_table(table: Tensor) -> Tensor:
    """[..., N, K] f32 master of an Engram table -> bf16 values of its FP8 form (one scale per 32)."""
    return _Rounded.apply(table, _table_values)


def _through(encode: Callable[[Tensor], tuple[Tensor, Tensor]], weight: Tensor) -> Tensor:
    rows = weight.reshape(-1, weight.shape[-1])
    return dequantize_weight(*encode(rows)).view(weight.shape)


def _table_values(table: Tensor) -> Tensor:
    return dequantize_table(*encode_fp8_rows(table.flatten(0, -2))).view(table.shape)


def dequantize_table(values: Tensor, scales: Tensor) -> Tensor:
    """Rows [N, K] e4m3 with scales [N, K/32] e8m0, dequantized to bf16."""
    blocks = values.float().unflatten(-1, (-1, 32)) * scales.float()[..., None]
    return blocks.flatten(-2).to(torch.bfloat16)
