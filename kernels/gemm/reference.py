"""Linear layers in plain torch: the specification.

Quantized operands are exact in bf16, so a matmul of the dequantized values with fp32 accumulation
equals the block-scaled GEMM up to the order of summation.

Batch-invariant on a CPU: a row has the same bits in any batch and with any number of threads.  This
was measured for oneDNN's bf16 matmul at any shape, and for MKL's fp32 matmul if rows are padded to
a multiple of 8 and columns to a multiple of 16; ``tests/kernels/test_gemm.py`` checks it on the
machine at hand.  CUDA matmuls of torch do not guarantee it.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from deepinfer.kernels.quant import fake_quantize_fp8

from .weights import Weight

ROW_MULTIPLE = 8


def quantized_linear_reference(x: Tensor, weight: Weight) -> Tensor:
    """FP8 activations (1x32) times an FP8 (32x32) or FP4 (1x32) weight.

    Shapes: x [T, K] bf16, weight [N, K]; returns [T, N] bf16.
    """
    return linear_reference(fake_quantize_fp8(x), weight)


def linear_reference(x: Tensor, weight: Weight) -> Tensor:
    """``x @ weight.T`` on bf16 operands with fp32 accumulation.

    Shapes: x [T, K] bf16, weight [N, K]; returns [T, N] bf16.
    """
    if x.is_cuda or _cpu_has_bf16():
        return x @ weight.dense.t()
    return _matmul_f32(x.float(), weight).to(torch.bfloat16)


def grouped_linear_reference(x: Tensor, weight: Weight, *, fp8: bool = False) -> Tensor:
    """One weight per group of inputs, on bf16 operands; with ``fp8`` the activations are rounded to
    FP8 (1x32) first.

    Shapes: x [T, G, K] bf16, weight [G, N, K]; returns [T, G, N] bf16.
    """
    if fp8:
        x = fake_quantize_fp8(x)
    groups = range(x.shape[1])
    return torch.stack([linear_reference(x[:, g], weight[g]) for g in groups], dim=1)


def fp32_linear_reference(x: Tensor, weight: Weight) -> Tensor:
    """Linear layer in fp32 (no TF32) with an fp32 result.

    Shapes: x [T, K] bf16|f32, weight [N, K] stored as bf16|f32; returns [T, N] f32.
    """
    return _matmul_f32(x.float(), weight)


def _matmul_f32(x: Tensor, weight: Weight) -> Tensor:
    """x [T, K] f32 times weight [N, K], [T, N] f32."""
    rows = x.shape[0]
    padding = -rows % ROW_MULTIPLE
    if padding:
        x = functional.pad(x, (0, 0, 0, padding))
    return (x @ weight.padded_f32.t())[:rows, : weight.num_rows]


@cache
def _cpu_has_bf16() -> bool:
    """Whether this CPU has bf16 dot product instructions; emulation is slower than fp32."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
