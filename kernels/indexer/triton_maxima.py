"""Maxima of segments of scores in Triton: the only kernel that reads all scores."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from deepinfer.kernels.launch import cdiv
from deepinfer.kernels.quant.triton_bits import bf16_bits, bf16_value
from deepinfer.kernels.relaunch import launch

_TILE = 8192
_MOST_AT_ODD = 1024  # segments of unaligned rows: registers do not suffice for more addresses


def segment_best(
    bits: Tensor,
    visible: Tensor | None,
    segment: int,
    *,
    group: int = 1,
    keep_newest: bool = False,
) -> tuple[Tensor, Tensor]:
    """Bits of the best visible score of each segment, [rows, ceil(N / segment)], and of each
    ``group`` of segments (the same tensor if it is 1).

    Shapes: bits [rows, N] i16 (of bf16) or i32 (of fp32), visible [rows] i64 or None for all.
    NaN counts as -inf.  ``keep_newest`` makes the segment with the last visible score the best.
    """
    rows, size = bits.shape
    width = cdiv(size, segment)
    # Rows are aligned for wide loads and padded to whole groups.
    unit = 16 * group
    best = bits.new_empty(rows, cdiv(width, unit) * unit)[:, :width]
    top_width = cdiv(width, group)
    tops = best if group == 1 else bits.new_empty(rows, 16 * cdiv(top_width, 16))[:, :top_width]
    is_even = bits.stride(0) % 16 == 0
    tile = max(1, min(_TILE if is_even else _MOST_AT_ODD, _TILE // segment))
    if best.numel():
        launch(segment_best_kernel, (rows, cdiv(width, tile)))(
            bits, visible, best, tops, size, bits.stride(0), width, best.stride(0), tops.stride(0),
            BITS=8 * bits.element_size(), SEGMENT=segment, TILE=tile, GROUP=group,
            KEEP_NEWEST=keep_newest, HAS_VISIBLE=visible is not None,
            num_warps=4, enable_fp_fusion=True,
        )  # fmt: skip
    return best, tops


@triton.jit
def segment_best_kernel(
    bits_ptr, visible_ptr, best_ptr, tops_ptr, size, stride, width, best_stride, tops_stride,
    BITS: tl.constexpr, SEGMENT: tl.constexpr, TILE: tl.constexpr, GROUP: tl.constexpr,
    KEEP_NEWEST: tl.constexpr, HAS_VISIBLE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    segment = tl.program_id(1) * TILE + tl.arange(0, TILE)
    entry = segment[:, None] * SEGMENT + tl.arange(0, SEGMENT)[None, :]
    end = size
    if HAS_VISIBLE:
        visible = tl.load(visible_ptr + row)
        end = tl.minimum(visible, size).to(tl.int32)
    place = bits_ptr + row * stride + entry
    MINUS_INFINITY: tl.constexpr = -128 if BITS == 16 else -8388608
    # Without a mask, loads are 16 bytes wide.
    if (tl.program_id(1) + 1) * TILE * SEGMENT <= end:
        bits = tl.load(place)
    else:
        bits = tl.load(place, mask=entry < end, other=MINUS_INFINITY)
    bits = bits.to(tl.int32)
    best = tl.max(bf16_value(bits) if BITS == 16 else bits.to(tl.float32, bitcast=True), 1)
    # max ignores NaN, unless all are NaN.
    best = tl.where(best == best, best, float("-inf"))
    if KEEP_NEWEST:
        is_newest = (visible > 0) & (segment == (visible - 1) // SEGMENT)
        best = tl.where(is_newest, float("inf"), best)
    kind = best_ptr.dtype.element_ty
    bits = bf16_bits(best) if BITS == 16 else best.to(tl.int32, bitcast=True)
    tl.store(best_ptr + row * best_stride + segment, bits.to(kind), mask=segment < width)
    if GROUP > 1:
        top = tl.max(tl.reshape(best, (TILE // GROUP, GROUP)), 1)
        bits = bf16_bits(top) if BITS == 16 else top.to(tl.int32, bitcast=True)
        group = tl.program_id(1) * (TILE // GROUP) + tl.arange(0, TILE // GROUP)
        tl.store(tops_ptr + row * tops_stride + group, bits.to(kind), mask=group * GROUP < width)
