"""Device functions that load packed cache rows (``rows.py`` has their layout)."""

from __future__ import annotations

import triton
import triton.language as tl

from .triton_bits import e2m1_value, e4m3_value, e8m0_value


@triton.jit
def window_keys(
    pairs_ptr, bytes_ptr, index, HALF: tl.constexpr, TILE_PAIRS: tl.constexpr, TILE_K: tl.constexpr
):
    """Even and odd values, fp32 [K, TILE_PAIRS], of FP8 rows; a row of index -1 is 0.

    ``pairs_ptr`` is the same memory as i16, for rows of an even number of bytes (HALF % 32 == 0).
    """
    ROW: tl.constexpr = 2 * HALF + HALF // 16
    present = (index >= 0)[:, None]
    pair = tl.arange(0, TILE_PAIRS)[None, :]
    is_value = present & (pair < HALF)
    if HALF % 32 == 0:
        values = tl.load(pairs_ptr + index[:, None] * (ROW // 2) + pair, mask=is_value, other=0)
        even, odd = e4m3_value(values), e4m3_value(values >> 8)
    else:
        value_ptr = bytes_ptr + index[:, None] * ROW + 2 * pair
        even = e4m3_value(tl.load(value_ptr, mask=is_value, other=0))
        odd = e4m3_value(tl.load(value_ptr + 1, mask=is_value, other=0))
    scale_ptr = bytes_ptr + index[:, None] * ROW + 2 * HALF
    scales = e8m0_value(_load_scales(scale_ptr, present, HALF // 16, TILE_PAIRS // 16))
    even = _scale_blocks(even, scales, TILE_K, TILE_PAIRS // 16, 16)
    odd = _scale_blocks(odd, scales, TILE_K, TILE_PAIRS // 16, 16)
    return even, odd


@triton.jit
def main_keys(bytes_ptr, index, HALF: tl.constexpr, TILE_PAIRS: tl.constexpr, TILE_K: tl.constexpr):
    """Even and odd values, fp32 [K, TILE_PAIRS], of FP4 rows; a row of index -1 is 0."""
    present = (index >= 0)[:, None]
    row_ptr = bytes_ptr + index[:, None] * (HALF + HALF // 8)
    pair = tl.arange(0, TILE_PAIRS)[None, :]
    values = tl.load(row_ptr + pair, mask=present & (pair < HALF), other=0)
    scales = e4m3_value(_load_scales(row_ptr + HALF, present, HALF // 8, TILE_PAIRS // 8))
    even = _scale_blocks(e2m1_value(values), scales, TILE_K, TILE_PAIRS // 8, 8)
    odd = _scale_blocks(e2m1_value(values >> 4), scales, TILE_K, TILE_PAIRS // 8, 8)
    return even, odd


@triton.jit
def index_codes(bytes_ptr, row, is_row, HALF: tl.constexpr, TILE_PAIRS: tl.constexpr):
    """Packed FP4 [K, TILE_PAIRS] u8, two per byte, and scales per 32 [K, TILE_PAIRS / 16] u8."""
    present = is_row[:, None]
    row_ptr = bytes_ptr + row[:, None] * (HALF + HALF // 16)
    pair = tl.arange(0, TILE_PAIRS)[None, :]
    codes = tl.load(row_ptr + pair, mask=present & (pair < HALF), other=0)
    return codes, _load_scales(row_ptr + HALF, present, HALF // 16, TILE_PAIRS // 16)


@triton.jit
def index_keys(
    bytes_ptr, row, is_row, HALF: tl.constexpr, TILE_PAIRS: tl.constexpr, TILE_K: tl.constexpr
):
    """Even and odd values, fp32 [K, TILE_PAIRS], of FP4 rows with E8M0 scales."""
    values, scales = index_codes(bytes_ptr, row, is_row, HALF, TILE_PAIRS)
    scales = e8m0_value(scales)
    even = _scale_blocks(e2m1_value(values), scales, TILE_K, TILE_PAIRS // 16, 16)
    odd = _scale_blocks(e2m1_value(values >> 4), scales, TILE_K, TILE_PAIRS // 16, 16)
    return even, odd


@triton.jit
def _load_scales(ptr, present, COUNT: tl.constexpr, TILE_BLOCKS: tl.constexpr):
    block = tl.arange(0, TILE_BLOCKS)[None, :]
    return tl.load(ptr + block, mask=present & (block < COUNT), other=0)


@triton.jit
def _scale_blocks(values, scales, ROWS: tl.constexpr, BLOCKS: tl.constexpr, SIZE: tl.constexpr):
    blocks = tl.reshape(values, (ROWS, BLOCKS, SIZE)) * scales[:, :, None]
    return tl.reshape(blocks, (ROWS, BLOCKS * SIZE))
