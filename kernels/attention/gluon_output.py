"""Epilogue of the Hopper attention kernel: normalize, un-rotate, optionally quantize, store by
TMA."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from deepinfer.kernels.gemm.gluon_quantize import (
    block_exponent,
    e4m3_pairs,
    largest_of,
    power_of_two,
    rounded_to_bf16,
)
from deepinfer.kernels.gluon_names import seen_as, store_tile, thread_barrier

from .gluon_rows import halves_of
from .gluon_work import EMPTY, HALF, HEADS, TILE_BF16, TILE_E4M3, opaque_zero

LOWEST = gl.constexpr(-1e30)
LOG2_E = gl.constexpr(1.4426950408889634)
SCORE_LAYOUT = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
SUM_LAYOUT = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 256, 16]))


@gluon.jit
def finish(
    sums, highest, total, item, outputs, shared,
    SIDE: gl.constexpr, ROTARY: gl.constexpr, PIECES: gl.constexpr,
):  # fmt: skip
    """Divide by the denominator, un-rotate the last columns, and issue the TMA store of one half of
    the output from the buffer of this half of the last tile.

    The output is bf16, or quantized per 128.  With split keys it is fp16, normalized within the
    piece, with log2 of the denominator.
    """
    WHOLE: gl.constexpr = PIECES == 1
    TURNS: gl.constexpr = WHOLE and SIDE == 1 and ROTARY > 0
    _, _, _, out, state_ptr, _, sinks, scale_stride, lse_ptr, _ = outputs
    _, keys, _, _, _, turns, _ = shared
    if WHOLE:
        log2_sink = sinks.index(SIDE).load(gl.SliceLayout(1, SCORE_LAYOUT))
        factor = gl.where(total > 0.0, 1.0 / (total + gl.exp2(log2_sink - highest)), 0.0)
        if SIDE == 0 and lse_ptr is not None:
            lse = (highest + gl.log2(total)) / LOG2_E
            _store_of_heads(lse_ptr, item, gl.where(total == 0.0, float("inf"), lse))
    else:
        factor = gl.where(total > 0.0, 1.0 / total, 0.0)
        if SIDE == 0:
            logarithm = gl.where(total > 0.0, highest + gl.log2(total), LOWEST)
            _store_of_heads(state_ptr, item, logarithm)
    thread_barrier()  # all warps have finished reading the buffer
    if out.dtype == gl.int16:
        # Otherwise the compiler hoists addresses out of the loop over items, into registers.
        zero = opaque_zero(item)
        places = seen_as(keys, gl.int16, [8, HEADS, HALF // 2], TILE_E4M3)
        place = places.index(zero + (4 + 2 * SIDE))
        left, right = halves_of(rounded_to_bf16(_divided(sums, factor)))
        if TURNS:
            third, last = halves_of(right)
            right = _joined(third, rounded_to_bf16(_turned_back(last, turns)))
        _store_block(place, left, state_ptr + item, scale_stride + zero, 2 * SIDE)
        _store_block(place, right, state_ptr + item, scale_stride + zero, 2 * SIDE + 1)
        fence_async_shared()
        store_tile(out, [item * HEADS, SIDE * (HALF // 2)], place)
    else:
        place = seen_as(keys, out.dtype, [4, HEADS, HALF], TILE_BF16).index(2 + SIDE)
        _store_values(place, sums, factor, turns, WHOLE, TURNS)
        fence_async_shared()
        store_tile(out, [item * HEADS, SIDE * HALF], place)


@gluon.jit
def _store_of_heads(ptr, item, values):
    head = gl.arange(0, HEADS, gl.SliceLayout(1, SCORE_LAYOUT))
    gl.store(ptr + item * HEADS + head, values)


@gluon.jit
def _store_values(place, sums, factor, turns, WHOLE: gl.constexpr, TURNS: gl.constexpr):
    if TURNS:
        left, right = halves_of(sums)
        third, last = halves_of(right)
        place.slice(0, 128, dim=1).store(_scaled(left, factor, WHOLE))
        place.slice(128, 64, dim=1).store(_scaled(third, factor, WHOLE))
        last = _scaled(last, factor, WHOLE).to(gl.float32)
        place.slice(192, 64, dim=1).store(_turned_back(last, turns).to(gl.bfloat16))
    else:
        place.store(_scaled(sums, factor, WHOLE))


@gluon.jit
def _store_block(place, values, scales, stride, BLOCK: gl.constexpr):
    """Quantize 64 heads x 128 to E4M3, and store values and scales."""
    exponent = block_exponent(largest_of(values))
    head = gl.arange(0, HEADS, exponent.type.layout)
    gl.store(scales + (head * 4 + BLOCK) * stride, power_of_two(exponent))
    place.slice(BLOCK % 2 * 64, 64, dim=1).store(e4m3_pairs(values, exponent))


@gluon.jit
def _joined(left, right):
    """[R, C] twice -> [R, 2 C], side by side: the inverse of ``halves_of``."""
    right = gl.convert_layout(right, left.type.layout, assert_trivial=True)
    both = gl.permute(gl.join(left, right), (0, 2, 1))
    return gl.reshape(both, (left.shape[0], 2 * left.shape[1]))


@gluon.jit
def await_store(barriers, is_stored, SIDE: gl.constexpr, PIECE_TILES: gl.constexpr):
    """Wait until TMA has read the results, and release their buffer if an item was stored before.

    An SM takes about 2,600 cycles to store the 64 KiB of an item.
    """
    tma.store_wait(0)
    if PIECE_TILES > 1:
        mbarrier.arrive(barriers.index(EMPTY + 2 + SIDE), count=1, pred=is_stored)


@gluon.jit
def _divided(values, factor):
    COLUMN: gl.constexpr = gl.SliceLayout(1, values.type.layout)
    return values * gl.convert_layout(factor, COLUMN, assert_trivial=True)[:, None]


@gluon.jit
def _scaled(values, factor, WHOLE: gl.constexpr):
    values = _divided(values, factor)
    if WHOLE:
        return values.to(gl.bfloat16)
    else:  # noqa: RET505 - both are compiled otherwise
        return gl.minimum(gl.maximum(values, -65504.0), 65504.0).to(gl.float16)


@gluon.jit
def _turned_back(values, turns):
    """64 heads x 64 f32, un-rotated by the cosines and sines in ``turns``."""
    even, odd = gl.split(gl.reshape(values, (HEADS, 32, 2)))
    PAIR: gl.constexpr = gl.SliceLayout(0, even.type.layout)
    cos, sin = turns.index(0).load(PAIR)[None, :], turns.index(1).load(PAIR)[None, :]
    turned = gl.join(even * cos + odd * sin, odd * cos - even * sin)
    return gl.reshape(turned, (HEADS, 64))
