"""Mixing coefficients from the partial sums of all slices, in Gluon: 16 tokens per program.

Eight threads hold the 24 dot products of a token, four each, from the first load to the last store:
a thread has one row of the 4 x 4 matrix, so Sinkhorn iterations only exchange data between
neighboring threads.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

MADE_TOKENS = gl.constexpr(16)
_NORM_EPS = gl.constexpr(1e-20)
_ROWS = gl.constexpr(24)
# Each token has two halves: comb's rows in one, pre and post in the other.
_HALVES = gl.constexpr(2 * MADE_TOKENS.value)
_FOURS = gl.constexpr(gl.BlockedLayout([1, 1, 4], [8, 4, 1], [4, 1, 1], [2, 1, 0]))
_PLACES = gl.constexpr(gl.SliceLayout(2, _FOURS))


@gluon.jit
def make_coefficients(
    tile, products_ptr, squares_ptr, scale_ptr, base_ptr, pre_ptr, post_ptr, comb_ptr, num_tokens,
    inverse_size, eps, SLICES: gl.constexpr, ROUNDS: gl.constexpr,
):  # fmt: skip
    """``HyperMix`` of 16 tokens, from partial dot products [SLICES, T, 24] and sums of squares
    [SLICES, T], f32."""
    half = gl.arange(0, _HALVES, gl.SliceLayout(1, _PLACES))[:, None]
    row = gl.arange(0, 4, gl.SliceLayout(0, _PLACES))[None, :]
    four = gl.arange(0, 4, gl.SliceLayout(0, gl.SliceLayout(1, _FOURS)))[None, None, :]
    token = tile * MADE_TOKENS + half // 2 + 0 * row
    is_token = token < num_tokens
    # 0 is pre, 1 post, 2 to 5 comb; the rest is unused.
    part = (half % 2 * 4 + row + 2) % 8
    squares = gl.zeros([_HALVES, 4], gl.float32, _PLACES)
    for first in gl.static_range(0, SLICES, 4):
        index = first + row
        place = squares_ptr + (index.to(gl.int64) * num_tokens + token)
        mask = is_token & (index < SLICES)
        squares += gl.load(place, mask=mask, other=0.0, eviction_policy="evict_first")
    factor = gl.rsqrt(gl.sum(squares, 1) * inverse_size + _NORM_EPS)[:, None][:, :, None]
    place = (part * 4)[:, :, None] + four
    is_product = (is_token & (part < 6))[:, :, None]
    products = gl.zeros([_HALVES, 4, 4], gl.float32, _FOURS)
    source = products_ptr + ((token * _ROWS)[:, :, None] + place)
    for index in gl.static_range(SLICES):
        place_of = source + index * (num_tokens.to(gl.int64) * _ROWS)
        products += gl.load(place_of, mask=is_product, other=0.0, eviction_policy="evict_first")
    scale = gl.load(scale_ptr + gl.minimum(part, 2))[:, :, None]
    logits = products * factor * scale + gl.load(base_ptr + place, mask=is_product, other=0.0)
    gates = 1.0 / (1.0 + gl.exp(-logits))
    place = (token * 4)[:, :, None] + four
    gl.store(pre_ptr + place, gates + eps, mask=(is_token & (part == 0))[:, :, None])
    gl.store(post_ptr + place, 2.0 * gates, mask=(is_token & (part == 1))[:, :, None])
    place = (token * 16 + row * 4)[:, :, None] + four
    is_comb = (is_token & (half % 2 == 0))[:, :, None]
    gl.store(comb_ptr + place, _sinkhorn(logits, eps, ROUNDS), mask=is_comb)


@gluon.jit
def _sinkhorn(logits, eps, ROUNDS: gl.constexpr):
    """Sinkhorn iterations on [N, 4, 4]: normalize rows and columns alternately."""
    comb = gl.exp(logits - gl.max(logits, 2)[:, :, None])
    comb = comb * _inverse(gl.sum(comb, 2))[:, :, None] + eps
    comb = comb * _inverse(gl.sum(comb, 1) + eps)[:, None, :]
    for _ in range(ROUNDS - 1):
        comb = comb * _inverse(gl.sum(comb, 2) + eps)[:, :, None]
        comb = comb * _inverse(gl.sum(comb, 1) + eps)[:, None, :]
    return comb


@gluon.jit
def _inverse(x):
    """1 / x by one instruction, within one ulp: the sums are far from 0 and infinity."""
    return gl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=r,r", [x], dtype=gl.float32, is_pure=True, pack=1
    )
