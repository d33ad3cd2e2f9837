"""Device functions that read packed cache rows (their layout is in ``rows.py``)."""

from __future__ import annotations

import triton
import triton.language as tl

from .triton_bits import e2m1_value, e4m3_value, e8m0_value


@triton.jit
def window_keys(pairs_ptr, bytes_ptr, index, HALF: tl.constexpr, TILE_K: tl.constexpr):
    """Even and odd values, fp32 [K, D/2], of FP8 rows; a row of index -1 is 0."""
    BLOCKS: tl.constexpr = HALF // 16
    ROW_PAIRS: tl.constexpr = HALF + BLOCKS // 2
    present = (index >= 0)[:, None]
    pair = tl.arange(0, HALF)[None, :]
    block = tl.arange(0, BLOCKS)[None, :]
    values = tl.load(pairs_ptr + index[:, None] * ROW_PAIRS + pair, mask=present, other=0)
    scale_ptr = bytes_ptr + index[:, None] * (2 * ROW_PAIRS) + 2 * HALF + block
    scales = e8m0_value(tl.load(scale_ptr, mask=present, other=0))
    even = _scale_blocks(e4m3_value(values), scales, TILE_K, BLOCKS, 16)
    odd = _scale_blocks(e4m3_value(values >> 8), scales, TILE_K, BLOCKS, 16)
    return even, odd


@triton.jit
def main_keys(bytes_ptr, index, HALF: tl.constexpr, TILE_K: tl.constexpr):
    """Even and odd values, fp32 [K, D/2], of FP4 rows; a row of index -1 is 0."""
    BLOCKS: tl.constexpr = HALF // 8
    ROW: tl.constexpr = HALF + BLOCKS
    present = (index >= 0)[:, None]
    row_ptr = bytes_ptr + index[:, None] * ROW
    values = tl.load(row_ptr + tl.arange(0, HALF)[None, :], mask=present, other=0)
    scale_ptr = row_ptr + HALF + tl.arange(0, BLOCKS)[None, :]
    scales = e4m3_value(tl.load(scale_ptr, mask=present, other=0))
    even = _scale_blocks(e2m1_value(values), scales, TILE_K, BLOCKS, 8)
    odd = _scale_blocks(e2m1_value(values >> 4), scales, TILE_K, BLOCKS, 8)
    return even, odd


@triton.jit
def _scale_blocks(values, scales, ROWS: tl.constexpr, BLOCKS: tl.constexpr, SIZE: tl.constexpr):
    blocks = tl.reshape(values, (ROWS, BLOCKS, SIZE)) * scales[:, :, None]
    return tl.reshape(blocks, (ROWS, BLOCKS * SIZE))


@triton.jit
def index_keys(bytes_ptr, row, present, HALF: tl.constexpr, TILE_K: tl.constexpr):
    """Even and odd values, fp32 [K, D/2], of FP4 rows with powers of two as scales."""
    BLOCKS: tl.constexpr = HALF // 16
    row_ptr = bytes_ptr + row[:, None] * (HALF + BLOCKS)
    is_present = present[:, None]
    values = tl.load(row_ptr + tl.arange(0, HALF)[None, :], mask=is_present, other=0)
    scale_ptr = row_ptr + HALF + tl.arange(0, BLOCKS)[None, :]
    scales = e8m0_value(tl.load(scale_ptr, mask=is_present, other=0))
    even = _scale_blocks(e2m1_value(values), scales, TILE_K, BLOCKS, 16)
    odd = _scale_blocks(e2m1_value(values >> 4), scales, TILE_K, BLOCKS, 16)
    return even, odd
