"""Device functions that quantize rows in blocks and store them in the format of ``Activations``.

A tile is a run of consecutive blocks, which may span several rows, so that no row width leaves
threads idle.
"""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer.kernels.quant.triton_bits import (
    bf16_pair,
    e4m3_code,
    e4m3_pair,
    e4m3_value,
    e8m0_value,
    exponent_above,
)


@triton.jit
def block_tile(tile, num_rows, NUM_BLOCKS: tl.constexpr, TILE: tl.constexpr):
    """For each block of a tile: its row, its index in the row, and whether the row exists."""
    place = tile * TILE + tl.arange(0, TILE)
    row = place // NUM_BLOCKS
    return row, place - row * NUM_BLOCKS, row < num_rows


@triton.jit
def kept_pairs(block, BLOCK: tl.constexpr, ORDER: tl.constexpr):
    """Indices in its row of the pairs of a block [N], in the order in which ``store_quantized``
    stores them: [N, BLOCK / 2].  Loading in this order saves a permutation."""
    place = tl.arange(0, BLOCK // 2)
    if ORDER == 2:  # element 32 t + 8 i + 4 h + j is stored at 32 i + 16 h + 4 t + j
        place = place // 2 % 4 * 16 + place // 16 * 4 + place // 8 % 2 * 2 + place % 2
        place = tl.max_contiguous(tl.multiple_of(place, 2), 2)
    return block[:, None] * (BLOCK // 2) + place[None, :]


@triton.jit
def store_quantized(
    even, odd, row, block, inside, values, scales, scale_stride, NUM_BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr, PATH: tl.constexpr, ORDER: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """Quantize the even and odd elements of ``kept_pairs`` of blocks [N], f32, and store them.

    ``values`` and ``scales`` are ``Activations.writer``; ``inside`` masks blocks that exist.
    """
    codes, odd_codes, exponent = quantized(even, odd, PATH, ORDER, NATIVE)
    store_codes(
        codes, odd_codes, exponent, row, block, inside, values, scales, scale_stride,
        NUM_BLOCKS, BLOCK, PATH, ORDER,
    )  # fmt: skip


@triton.jit
def quantized(even, odd, PATH: tl.constexpr, ORDER: tl.constexpr, NATIVE: tl.constexpr):
    """The first half of ``store_quantized``: quantized pairs (in the order SPLIT: even elements,
    odd elements), and biased exponents of the blocks' scales."""
    even_size, odd_size = tl.abs(even), tl.abs(odd)
    if not NATIVE:  # elsewhere max may propagate NaN
        even_size = tl.where(even == even, even_size, 0.0)
        odd_size = tl.where(odd == odd, odd_size, 0.0)
    largest = tl.max(tl.maximum(even_size, odd_size), axis=1)
    exponent = tl.minimum(exponent_above(tl.maximum(largest, 1e-4) * (1.0 / 448.0)), 246)
    inverse = e8m0_value(254 - exponent)[:, None]
    even, odd = even * inverse, odd * inverse
    if not NATIVE:  # the instruction saturates at 448
        even, odd = _clamped(even), _clamped(odd)
    if PATH == 0:
        scale = e8m0_value(exponent)[:, None]
        even = tl.where(even == even, e4m3_value(e4m3_code(even, NATIVE)) * scale, even)
        odd = tl.where(odd == odd, e4m3_value(e4m3_code(odd, NATIVE)) * scale, odd)
        codes = bf16_pair(even, odd)
        odd_codes = codes
    elif ORDER == 1:
        codes = e4m3_code(even, NATIVE).to(tl.uint8)
        odd_codes = e4m3_code(odd, NATIVE).to(tl.uint8)
    else:
        codes = e4m3_pair(even, odd, NATIVE)
        odd_codes = codes
    return codes, odd_codes, exponent


@triton.jit
def store_codes(
    codes, odd_codes, exponent, row, block, inside, values, scales, scale_stride,
    NUM_BLOCKS: tl.constexpr, BLOCK: tl.constexpr, PATH: tl.constexpr, ORDER: tl.constexpr,
):  # fmt: skip
    """The second half of ``store_quantized``; may be called for several destination rows."""
    place = block[:, None] * (BLOCK // 2) + tl.arange(0, BLOCK // 2)[None, :]
    inside_row = inside[:, None]
    if (PATH > 0) and (ORDER == 1):  # bytes: the even elements of a block, then the odd ones
        byte = values + row.to(tl.int64)[:, None] * (NUM_BLOCKS * BLOCK) + place
        byte += block[:, None] * (BLOCK // 2)
        tl.store(byte, codes, mask=inside_row)
        tl.store(byte + BLOCK // 2, odd_codes, mask=inside_row)
    else:
        first = values + row.to(tl.int64)[:, None] * (NUM_BLOCKS * (BLOCK // 2))
        tl.store(first + place, codes, mask=inside_row)
    if PATH == 1:
        scale_place = block.to(tl.int64) * scale_stride + row
        tl.store(scales + scale_place, e8m0_value(exponent), mask=inside)
    elif PATH == 2:
        scale_place = row.to(tl.int64) * NUM_BLOCKS + block
        tl.store(scales + scale_place, exponent.to(tl.uint8), mask=inside)


@triton.jit
def _clamped(x):
    """Clamp to +-448; NaN passes through."""
    return tl.where(x == x, tl.minimum(tl.maximum(x, -448.0), 448.0), x)
