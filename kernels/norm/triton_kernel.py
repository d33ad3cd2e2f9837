"""Device function for Triton kernels: RMS norm of a row, fused with quantization."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.kernels.gemm.activations import Activations
from deepinfer.kernels.gemm.triton_blocks import kept_pairs, store_quantized
from deepinfer.kernels.launch import bf16_pairs, check_tensor, next_power_of_2
from deepinfer.kernels.quant.triton_bits import bf16_pair, even_bf16, odd_bf16

_PAIRS_PER_WARP = 512


def norm_operands(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Both as pairs of bf16 for ``normed_row``.  Raises: TensorError for another dtype or shape."""
    check_tensor("weight", weight, torch.bfloat16, (x.shape[1],), x)
    return bf16_pairs("x", x), bf16_pairs("weight", weight)


def norm_layout(width: int, acts: Activations) -> dict[str, int]:
    """constexpr arguments of a kernel that calls ``normed_row``."""
    layout = acts.layout
    return layout | {"D": width, "BLOCKS": next_power_of_2(layout["NUM_BLOCKS"])}


def norm_warps(width: int) -> int:
    """Number of warps per row."""
    warps: int = next_power_of_2(width // 2) // _PAIRS_PER_WARP
    return max(1, min(4, warps))


@triton.jit
def normed_row(
    x_ptr, weight_ptr, out_ptr, values_ptr, scales_ptr, row, scale_stride, eps,
    D: tl.constexpr, BLOCKS: tl.constexpr, NUM_BLOCKS: tl.constexpr, BLOCK: tl.constexpr,
    PATH: tl.constexpr, ORDER: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """Normalize the row of pairs at ``x_ptr`` and store it to row ``row`` (i64) of ``out_ptr`` as
    bf16 and to the same row of the activations quantized (see ``store_quantized``)."""
    block = tl.arange(0, BLOCKS)
    pair = kept_pairs(block, BLOCK, ORDER)
    inside = pair < D // 2
    packed = tl.load(x_ptr + pair, mask=inside, other=0)
    even, odd = even_bf16(packed), odd_bf16(packed)
    squares = tl.sum(tl.sum(even * even + odd * odd, 1), 0)
    factor = tl.rsqrt(squares * (1.0 / D) + eps)
    # Loaded late, since it hits the cache: fewer registers allow more rows in flight.
    weight = tl.load(weight_ptr + pair, mask=inside, other=0)
    normed = bf16_pair(
        even_bf16(weight) * (even * factor), odd_bf16(weight) * (odd * factor), NATIVE
    )
    tl.store(out_ptr + row * (D // 2) + pair, normed, mask=inside)
    store_quantized(
        even_bf16(normed), odd_bf16(normed), row + tl.zeros([BLOCKS], tl.int64), block,
        block < NUM_BLOCKS, values_ptr, scales_ptr, scale_stride, NUM_BLOCKS, BLOCK, PATH, ORDER,
        NATIVE,
    )  # fmt: skip
