"""Expansion and collapse of the streams of a tile of tokens, for one step."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .gluon_producer import STREAMS, WIDTH


@gluon.constexpr_function
def values_layout(tile_tokens):
    """A thread holds columns of one token; shared memory is read without bank conflicts."""
    few = tile_tokens // 4
    return gl.BlockedLayout([1, few], [few, 32 // few], [4, 1], [0, 1])


@gluon.constexpr_function
def _fours(tile_tokens):
    """Four coefficients of each token, in the threads that hold the token's columns."""
    few = tile_tokens // 4
    return gl.BlockedLayout([1, 4], [few, 32 // few], [4, 1], [0, 1])


@gluon.jit
def four_of_tokens(ptr, tile, STRIDE: gl.constexpr, num_tokens, TILE: gl.constexpr):
    """Load four coefficients per token of a tile, tokens STRIDE apart: [TILE, 1] each."""
    FOUR: gl.constexpr = _fours(TILE)
    token = tile * TILE + gl.arange(0, TILE, gl.SliceLayout(1, FOUR))
    place = token[:, None] * STRIDE + gl.arange(0, 4, gl.SliceLayout(0, FOUR))[None, :]
    numbers = gl.load(ptr + place, mask=(token < num_tokens)[:, None], other=0.0)
    even, odd = gl.split(gl.reshape(numbers, (TILE, 2, 2)))
    first, third = gl.split(even)
    second, fourth = gl.split(odd)
    LAYOUT: gl.constexpr = gl.SliceLayout(1, values_layout(TILE))
    return (
        gl.convert_layout(first, LAYOUT, assert_trivial=True)[:, None],
        gl.convert_layout(second, LAYOUT, assert_trivial=True)[:, None],
        gl.convert_layout(third, LAYOUT, assert_trivial=True)[:, None],
        gl.convert_layout(fourth, LAYOUT, assert_trivial=True)[:, None],
    )


@gluon.jit
def mix_values(x_tiles, output, post, comb, pre, squares, EXPAND: gl.constexpr):
    """Overwrite the streams with the new ones and ``output`` with their collapse; returns the sum
    of squares."""
    TILE: gl.constexpr = output.shape[0]
    VALUES: gl.constexpr = values_layout(TILE)
    x = (
        _wide(x_tiles[0].load(VALUES)),
        _wide(x_tiles[1].load(VALUES)),
        _wide(x_tiles[2].load(VALUES)),
        _wide(x_tiles[3].load(VALUES)),
    )
    if EXPAND:
        added = _wide(output.load(VALUES))
    collapsed = gl.zeros([TILE, WIDTH], gl.float32, VALUES)
    for stream in gl.static_range(STREAMS):
        value = x[stream]
        if EXPAND:
            value = gl.zeros([TILE, WIDTH], gl.float32, VALUES)
            for origin in gl.static_range(STREAMS):
                value += comb[origin][stream] * x[origin]
            bits = _rounded(post[stream] * added + value)
            x_tiles[stream].store(bits)
            value = _wide(bits)
        squares += value * value
        collapsed += pre[stream] * value
    output.store(_rounded(collapsed))
    return squares


# Conversions of two values by two instructions: the compiler would convert them one by one.
@gluon.jit
def _wide(x):
    """bf16 to fp32."""
    return gl.inline_asm_elementwise(
        "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;", "=r,=r,r", [x], dtype=gl.float32,
        is_pure=True, pack=2,
    )  # fmt: skip


@gluon.jit
def _rounded(x):
    """fp32 to the nearest bf16."""
    return gl.inline_asm_elementwise(
        "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,r,r", [x], dtype=gl.bfloat16, is_pure=True, pack=2
    )
