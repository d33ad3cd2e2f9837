"""Linear layers in plain torch: the specification.

Quantised operands are exact in bf16, so a matmul of the dequantised numbers with fp32 accumulation
is the block-scaled product up to the order of summation.

Batch-invariant on a CPU: every row gets the same bits in any batch.  Measured for oneDNN's bf16
matmul at any number of rows and for MKL's fp32 one from 8 rows on (so fewer are padded to 8), with
one and two threads; ``tests/kernels/test_gemm.py`` checks it on the machine at hand.  CUDA matmuls
of torch give no such promise.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from deepinfer.kernels.quant import fake_quantize_fp8

from .weights import Weight

_MIN_ROWS = 8


def quantized_linear_reference(x: Tensor, weight: Weight) -> Tensor:
    """FP8 activations (1x32) times an FP8 (32x32) or FP4 (1x32) weight.

    Shapes: x [T, K] bf16, weight [N, K]; returns [T, N] bf16.
    """
    return linear_reference(fake_quantize_fp8(x), weight)


def linear_reference(x: Tensor, weight: Weight) -> Tensor:
    """``x @ weight.T`` on bf16 numbers, accumulated in fp32.

    Shapes: x [T, K] bf16, weight [N, K]; returns [T, N] bf16.
    """
    return matmul_bf16(x, weight.dense) if _use_bf16(x) else _via_f32(x, weight.dense_f32)


def grouped_linear_reference(x: Tensor, weight: Weight) -> Tensor:
    """A separate weight for each group of inputs, on bf16 numbers.

    Shapes: x [T, G, K] bf16, weight [G, N, K]; returns [T, G, N] bf16.
    """
    if _use_bf16(x):
        pieces = [matmul_bf16(x[:, g], w) for g, w in enumerate(weight.dense)]
    else:
        pieces = [_via_f32(x[:, g], w) for g, w in enumerate(weight.dense_f32)]
    return torch.stack(pieces, dim=1)


def fp32_linear_reference(x: Tensor, weight: Weight) -> Tensor:
    """True fp32 linear with an fp32 result.

    Shapes: x [T, K] bf16|f32, weight [N, K] bf16|f32 on disk; returns [T, N] f32.
    """
    return matmul_f32(x.float(), weight.dense_f32)


def matmul_f32(x: Tensor, weight: Tensor) -> Tensor:
    """x [T, K] f32 times weight [N, K] f32, [T, N] f32; rows are padded to 8 on a CPU."""
    rows = x.shape[0]
    if rows >= _MIN_ROWS or rows == 0 or x.is_cuda:
        return x @ weight.t()
    return (functional.pad(x, (0, 0, 0, _MIN_ROWS - rows)) @ weight.t())[:rows]


def matmul_bf16(x: Tensor, weight: Tensor) -> Tensor:
    """x [T, K] bf16 times weight [N, K] bf16 with fp32 accumulation, [T, N] bf16."""
    return x @ weight.t()


def _via_f32(x: Tensor, weight: Tensor) -> Tensor:
    return matmul_f32(x.float(), weight).to(torch.bfloat16)


def _use_bf16(x: Tensor) -> bool:
    return x.is_cuda or _cpu_has_bf16()


@cache
def _cpu_has_bf16() -> bool:
    """Whether this CPU has bf16 dot products; emulated ones are slower than fp32."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
