"""RMS norm in Triton whose rows are also left quantised for the product that follows."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.kernels.gemm import HopperWeight, Weight
from deepinfer.kernels.gemm.activations import Activations, store_quantized
from deepinfer.kernels.launch import bf16_pairs, check_tensor
from deepinfer.kernels.quant.triton_bits import bf16_pair, even_bf16, odd_bf16, round_bf16

_PAIRS_PER_WARP = 512


def norm_quantized_triton(
    x: Tensor, weight: Tensor, eps: float, linear: Weight | HopperWeight
) -> tuple[Tensor, Activations]:
    """``rms_norm_reference`` of x [T, D] bf16 (rows may have gaps between them) with a bf16 weight,
    and the same rows as ``quantized_linear`` wants them for ``linear``."""
    out = torch.empty(x.shape, dtype=torch.bfloat16, device=x.device)
    acts = Activations.empty_for(linear, *x.shape)
    pairs, norm = norm_operands(x, weight)
    if len(x):
        norm_kernel[(len(x),)](
            pairs, norm, bf16_pairs("out", out), *acts.writer, pairs.stride(0),
            acts.scale_stride, acts.values.shape[1], eps,
            **norm_layout(x.shape[1], acts), num_warps=norm_warps(x.shape[1]),
        )  # fmt: skip
    return out, acts


def norm_operands(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Both as ``normed_row`` reads them.  Raises: TensorError for another dtype or shape."""
    check_tensor("weight", weight, torch.bfloat16, (x.shape[1],), x)
    return bf16_pairs("x", x), bf16_pairs("weight", weight)


def norm_layout(width: int, acts: Activations) -> dict[str, int]:
    """Compile-time arguments of a kernel that calls ``normed_row``."""
    block = acts.layout["BLOCK"]
    return acts.layout | {
        "D": width,
        "BLOCKS": triton.next_power_of_2(acts.values.shape[1] // block),
    }


def norm_warps(width: int) -> int:
    """Warps that share a row."""
    return max(1, min(8, triton.next_power_of_2(width // 2) // _PAIRS_PER_WARP))


@triton.jit
def norm_kernel(
    x_ptr, weight_ptr, out_ptr, values_ptr, scales_ptr, x_stride, scale_stride, padded, eps,
    D: tl.constexpr, BLOCKS: tl.constexpr, BLOCK: tl.constexpr, PATH: tl.constexpr,
    ORDER: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    normed_row(
        x_ptr + row * x_stride, weight_ptr, out_ptr, values_ptr, scales_ptr, row, scale_stride,
        padded, eps, D, BLOCKS, BLOCK, PATH, ORDER, NATIVE,
    )  # fmt: skip


@triton.jit
def normed_row(
    x_ptr, weight_ptr, out_ptr, values_ptr, scales_ptr, row, scale_stride, padded, eps,
    D: tl.constexpr, BLOCKS: tl.constexpr, BLOCK: tl.constexpr, PATH: tl.constexpr,
    ORDER: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """Normalise one row of pairs at ``x_ptr``: bf16 to row ``row`` of ``out_ptr``, the same
    quantised to that of the activations (see ``store_quantized``)."""
    block = tl.arange(0, BLOCKS)[:, None]
    pair = block * (BLOCK // 2) + tl.arange(0, BLOCK // 2)[None, :]
    inside = pair < D // 2
    packed = tl.load(x_ptr + pair, mask=inside, other=0)
    weight = tl.load(weight_ptr + pair, mask=inside, other=0)
    even, odd = even_bf16(packed), odd_bf16(packed)
    squares = tl.sum(tl.sum(even * even + odd * odd, 1), 0)
    factor = tl.rsqrt(squares * (1.0 / D) + eps)
    even = round_bf16(even_bf16(weight) * (even * factor))
    odd = round_bf16(odd_bf16(weight) * (odd * factor))
    tl.store(out_ptr + row * (D // 2) + pair, bf16_pair(even, odd), mask=inside)
    store_quantized(
        even, odd, pair, values_ptr, scales_ptr, row, scale_stride, padded, BLOCK, PATH, ORDER,
        NATIVE,
    )  # fmt: skip
