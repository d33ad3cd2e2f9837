"""Consumer warpgroup of ``gluon_wide.py`` with SwiGLU in the epilogue: clamped, times the routing
weight, quantized.

Rows of the weight alternate, 64 gates followed by their 64 ups, so that 128 columns of the GEMM
give 64 activations.  One scale covers 128 activations, i.e. 256 columns.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma

from deepinfer.kernels.gluon_names import store_tile
from deepinfer.kernels.quant.triton_bits import SIGMOID

from .gluon_mainloop import mainloop_columns
from .gluon_pipeline import tile_coordinates, weight_row
from .gluon_quantize import (
    block_exponent,
    e4m3_pairs,
    largest_of,
    power_of_two,
    rounded_to_bf16,
)

UNGATED = gl.constexpr(-1)


@gluon.jit
def consume_gated(
    work, tiles, epilogue, gate, HALF: gl.constexpr,
    GROUPED: gl.constexpr, GROUP_M: gl.constexpr, ORDER: gl.constexpr,
):  # fmt: skip
    """Tiles of 256 columns; ``out`` [R, N / 4] i16 are pairs of E4M3 of N / 2 activations in the
    given order of K, with scales [N / 256, out_stride] f32."""
    tile_expert, num_row_tiles, N, K = work
    out, w_scales, o_tiles, row_pair, home = epilogue
    FIRST: gl.constexpr = HALF * 64
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 32])
    num_columns = N // 256
    groups = K // 128
    step = 0
    for tile in range(gl.program_id(0), num_row_tiles * num_columns, gl.num_programs(0)):
        row_tile, column = tile_coordinates(tile, num_columns, num_row_tiles, GROUP_M)
        row = row_tile * 128 + FIRST
        w_row = weight_row(tile_expert, row_tile, column * 256, N, GROUPED)
        place = w_scales + w_row + gl.arange(0, 128, gl.SliceLayout(0, layout))
        left, right = mainloop_columns(tiles, step, groups, FIRST, layout)
        w_scale, next_w_scale = gl.load(place), gl.load(place + 128)
        first = activated(left * w_scale[None, :], gate, row_pair, row, GROUPED)
        second = activated(right * next_w_scale[None, :], gate, row_pair, row, GROUPED)
        store_activated(out, o_tiles.index(HALF), first, second, gate, row, column, ORDER)
        step += groups
    tma.store_wait(0)


@gluon.jit
def activated(acc, gate, row_pair, row, GROUPED: gl.constexpr):
    """SwiGLU of a [64, 128] accumulator rounded to bf16, times the routing weights of the rows'
    pairs: [64, 64] f32, rounded to bf16."""
    weights, scales, stride, limit = gate
    both = gl.reshape(rounded_to_bf16(acc), (64, 2, 64))
    gates, ups = gl.split(gl.permute(both, (0, 2, 1)))
    values = gated(gates, ups, limit)
    if GROUPED:
        rows = row + gl.arange(0, 64, gl.SliceLayout(1, values.type.layout))
        pair = gl.maximum(gl.load(row_pair + rows), 0)
        values = values * gl.load(weights + pair)[:, None]
    return rounded_to_bf16(values)


@gluon.jit
def gated(gates, ups, limit):
    """The same bits as in ``kernels/moe/triton_swiglu.py``."""
    # Comparisons, not minima, so that NaN passes through.
    gates = gl.where(gates > limit, limit, gates)
    ups = gl.where(ups > limit, limit, gl.where(ups < -limit, -limit, ups))
    share = gl.inline_asm_elementwise(
        SIGMOID, "=f,f", [gates], dtype=gl.float32, is_pure=True, pack=1
    )
    return gates * share * ups


@gluon.jit
def store_activated(out, buffer, first, second, gate, row, column, ORDER: gl.constexpr):
    """Quantize and store two results of ``activated``, [64, 64] each, for 256 columns."""
    weights, scales, stride, limit = gate
    exponent = block_exponent(gl.maximum(largest_of(first), largest_of(second)))
    place = row + gl.arange(0, 64, exponent.type.layout)
    gl.store(scales + column * stride + place, power_of_two(exponent))
    codes = codes_in_order(first, second, exponent, ORDER)
    tma.store_wait(0)
    buffer.store(codes)
    fence_async_shared()
    store_tile(out, [row, column * 64], buffer)


@gluon.jit
def codes_in_order(first, second, exponent, ORDER: gl.constexpr):
    """Quantize two halves [R, 64] of blocks of 128 to pairs of E4M3 in an order of K: [R, 64]
    i16."""
    R: gl.constexpr = first.shape[0]
    pairs = gl.join(e4m3_pairs(first, exponent), e4m3_pairs(second, exponent))
    if ORDER == 2:  # ``k_order.fragment_order``: block of 32, then 8, 4 and 2 of it
        parts = gl.permute(gl.reshape(pairs, (R, 2, 4, 2, 2, 2)), (0, 2, 3, 5, 1, 4))
        return gl.reshape(parts, (R, 64))
    else:  # noqa: RET505 - both are compiled otherwise
        return gl.reshape(gl.permute(pairs, (0, 2, 1)), (R, 64))
