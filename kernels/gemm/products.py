"""Device functions: one tile of outputs as a chain of products in ascending K, for each path.

``x`` points [1, TOKENS] to rows of activations and ``w`` [WIDTH, 1] to rows of a weight, both at
K = 0; ``w_scales`` points [WIDTH] to rows of scales: a group of 128 inputs in one i32 (EVEN_K: K is
whole groups), else each block of 32 in one u8.  FORMAT 1 is FP8, 2 is FP4.  All return
[WIDTH, TOKENS] f32.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .weight_tiles import decoded_fp4, decoded_fp8, folded_fp4, folded_fp8


@triton.jit
def plain_product(x, w, K, WIDTH: tl.constexpr, TOKENS: tl.constexpr, DTYPE: tl.constexpr):
    """Numbers times numbers, 64 inputs at a time."""
    k = tl.arange(0, 64)
    sums = tl.zeros([WIDTH, TOKENS], tl.float32)
    for start in range(0, K, 64):
        left = tl.load(w + start + k[None, :], mask=(start + k < K)[None, :], other=0.0)
        right = tl.load(x + start + k[:, None], mask=(start + k < K)[:, None], other=0.0)
        sums = tl.dot(left.to(DTYPE), right.to(DTYPE), sums, input_precision="ieee")
    return sums


@triton.jit
def _load_packed(w, w_scales, group, K, FORMAT: tl.constexpr, EVEN_K: tl.constexpr):
    """Codes [WIDTH, 128 or 64] u8 and scales [WIDTH] i32 of one group of 128 inputs."""
    BYTES: tl.constexpr = 128 // FORMAT
    byte = group * BYTES + tl.arange(0, BYTES)[None, :]
    if EVEN_K:
        codes = tl.load(w + byte)
        scales = tl.load(w_scales + group)
    else:
        codes = tl.load(w + byte, mask=byte < K // FORMAT, other=0)
        part = tl.arange(0, 4)[None, :]
        inside = group * 4 + part < K // 32
        bytes = tl.load(w_scales[:, None] + group * 4 + part, mask=inside, other=0)
        scales = tl.sum(bytes.to(tl.int32) << (8 * part), axis=1)
    return codes, scales


@triton.jit
def decoded_product(
    x, w, w_scales, K,
    FORMAT: tl.constexpr, WIDTH: tl.constexpr, TOKENS: tl.constexpr, DTYPE: tl.constexpr,
    NATIVE: tl.constexpr, EVEN_K: tl.constexpr,
):  # fmt: skip
    """Decoded weights times plain activations."""
    k = tl.arange(0, 128)[:, None]
    sums = tl.zeros([WIDTH, TOKENS], tl.float32)
    for group in range(tl.cdiv(K, 128)):
        codes, scales = _load_packed(w, w_scales, group, K, FORMAT, EVEN_K)
        if FORMAT == 1:
            left = decoded_fp8(codes, scales, DTYPE, NATIVE)
        else:
            left = decoded_fp4(codes, scales, DTYPE)
        if EVEN_K:
            right = tl.load(x + group * 128 + k)
        else:
            right = tl.load(x + group * 128 + k, mask=group * 128 + k < K, other=0.0)
        sums = tl.dot(left, right.to(DTYPE), sums, input_precision="ieee")
    return sums


@triton.jit
def folded_product(
    x, x_scales, scale_stride, w, w_scales, K,
    FORMAT: tl.constexpr, WIDTH: tl.constexpr, TOKENS: tl.constexpr, NATIVE: tl.constexpr,
    EVEN_K: tl.constexpr,
):  # fmt: skip
    """E4M3 products of 128 inputs, summed in fp32 by one factor a row on either side."""
    k = tl.arange(0, 128 // FORMAT)[:, None]
    sums = tl.zeros([WIDTH, TOKENS], tl.float32)
    for group in range(tl.cdiv(K, 128)):
        codes, scales = _load_packed(w, w_scales, group, K, FORMAT, EVEN_K)
        row_scales = tl.load(x_scales)
        first = tl.load(x + group * 128 + k)
        if FORMAT == 1:
            left, factor = folded_fp8(codes, scales, NATIVE)
            part = tl.dot(left, first)
        else:
            second = tl.load(x + group * 128 + 64 + k)
            even, odd, factor = folded_fp4(codes, scales, NATIVE)
            part = tl.dot(even, first)
            part = tl.dot(odd, second, part)
        sums += part * (factor[:, None] * row_scales[None, :])
        x_scales += scale_stride
    return sums


@triton.jit
def scaled_product(
    x, x_scales, w, w_scales, K,
    FORMAT: tl.constexpr, WIDTH: tl.constexpr, TOKENS: tl.constexpr, EVEN_K: tl.constexpr,
):  # fmt: skip
    """Block-scaled products in the matrix unit."""
    k = tl.arange(0, 128)[:, None]
    block = tl.arange(0, 4)[None, :]
    KIND: tl.constexpr = "e4m3" if FORMAT == 1 else "e2m1"
    sums = tl.zeros([WIDTH, TOKENS], tl.float32)
    for group in range(tl.cdiv(K, 128)):
        codes, scales = _load_packed(w, w_scales, group, K, FORMAT, EVEN_K)
        right = tl.load(x + group * 128 + k)
        right_scales = tl.load(x_scales + group * 4 + block)
        left_scales = (scales[:, None] >> (8 * block)).to(tl.uint8)
        sums = tl.dot_scaled(codes, left_scales, KIND, right, right_scales, "e4m3", sums)
    return sums
