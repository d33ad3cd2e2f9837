"""Device functions: the main loop of one output tile over K in ascending order, for each path.

``x`` are pointers [1, TOKENS] to rows of activations and ``w`` [WIDTH, 1] to rows of a weight, both
at K = 0; ``w_scales`` are pointers [WIDTH] to rows of scales: one i32 holds the four scales of a
group of 128 (EVEN_K: K is a multiple of 128), else one u8 per block of 32.  FORMAT 1 is FP8, 2 is
FP4.  All return accumulators [WIDTH, TOKENS] f32.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .weight_tiles import decoded_fp4, decoded_fp8, folded_fp4, folded_fp8


@triton.jit
def plain_product(x, w, K, WIDTH: tl.constexpr, TOKENS: tl.constexpr, DTYPE: tl.constexpr):
    """Unquantized operands, BLOCK_K = 64."""
    k = tl.arange(0, 64)
    acc = tl.zeros([WIDTH, TOKENS], tl.float32)
    for start in range(0, K, 64):
        left = tl.load(w + start + k[None, :], mask=(start + k < K)[None, :], other=0.0)
        right = tl.load(x + start + k[:, None], mask=(start + k < K)[:, None], other=0.0)
        acc = tl.dot(left.to(DTYPE), right.to(DTYPE), acc, input_precision="ieee")
    return acc


@triton.jit
def _load_packed(w, w_scales, group, K, FORMAT: tl.constexpr, EVEN_K: tl.constexpr):
    """Packed values [WIDTH, 128 or 64] u8 and scales [WIDTH] i32 of one group of 128 along K."""
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
    """Weights decoded to DTYPE, times unquantized activations."""
    k = tl.arange(0, 128)[:, None]
    acc = tl.zeros([WIDTH, TOKENS], tl.float32)
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
        acc = tl.dot(left, right.to(DTYPE), acc, input_precision="ieee")
    return acc


@triton.jit
def folded_product(
    x, x_scales, scale_stride, w, w_scales, K,
    FORMAT: tl.constexpr, WIDTH: tl.constexpr, TOKENS: tl.constexpr, NATIVE: tl.constexpr,
    EVEN_K: tl.constexpr,
):  # fmt: skip
    """E4M3 MMAs over groups of 128, each added to an fp32 accumulator after scaling with one scale
    per row of both operands."""
    k = tl.arange(0, 128 // FORMAT)[:, None]
    acc = tl.zeros([WIDTH, TOKENS], tl.float32)
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
        acc += part * (factor[:, None] * row_scales[None, :])
        x_scales += scale_stride
    return acc


@triton.jit
def scaled_product(
    x, x_scales, w, w_scales, K,
    FORMAT: tl.constexpr, WIDTH: tl.constexpr, TOKENS: tl.constexpr, EVEN_K: tl.constexpr,
):  # fmt: skip
    """Block-scaled MMAs (``tl.dot_scaled``)."""
    k = tl.arange(0, 128)[:, None]
    block = tl.arange(0, 4)[None, :]
    KIND: tl.constexpr = "e4m3" if FORMAT == 1 else "e2m1"
    acc = tl.zeros([WIDTH, TOKENS], tl.float32)
    for group in range(tl.cdiv(K, 128)):
        codes, scales = _load_packed(w, w_scales, group, K, FORMAT, EVEN_K)
        right = tl.load(x + group * 128 + k)
        right_scales = tl.load(x_scales + group * 4 + block)
        left_scales = (scales[:, None] >> (8 * block)).to(tl.uint8)
        acc = tl.dot_scaled(codes, left_scales, KIND, right, right_scales, "e4m3", acc)
    return acc
