"""The second kernel of a sub-block's entry: coefficients, and the normalized, quantized input."""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer.kernels.norm.triton_kernel import normed_row

_NORM_EPS = tl.constexpr(1e-20)


@triton.jit(do_not_specialize=["num_tokens"])
def finish_kernel(
    collapsed_ptr, weight_ptr, normed_ptr, values_ptr, scales_ptr, scale_stride, norm_eps,
    products_ptr, squares_ptr, scale_ptr, base_ptr, pre_ptr, post_ptr, comb_ptr,
    num_tokens, num_slices, inverse_size, eps,
    S: tl.constexpr, ROUNDS: tl.constexpr, TILE_T: tl.constexpr, TILE_SLICES: tl.constexpr,
    D: tl.constexpr, BLOCKS: tl.constexpr, NUM_BLOCKS: tl.constexpr, BLOCK: tl.constexpr,
    PATH: tl.constexpr, ORDER: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """The first programs compute coefficients of TILE_T tokens, the rest normalize one token each.

    The former take longer but need little bandwidth, so they start first.  Both start with the last
    tokens, which the previous kernel has left in L2.
    """
    program = tl.program_id(0)
    num_tiles = tl.cdiv(num_tokens, TILE_T)
    if program >= num_tiles:
        row = (num_tokens - 1 - (program - num_tiles)).to(tl.int64)
        normed_row(
            collapsed_ptr + row * (D // 2), weight_ptr, normed_ptr, values_ptr, scales_ptr, row,
            scale_stride, norm_eps, D, BLOCKS, NUM_BLOCKS, BLOCK, PATH, ORDER, NATIVE,
        )  # fmt: skip
    else:
        _coefficients(
            num_tiles - 1 - program, products_ptr, squares_ptr, scale_ptr, base_ptr, pre_ptr,
            post_ptr, comb_ptr, num_tokens, num_slices, inverse_size, eps, S, ROUNDS, TILE_T,
            TILE_SLICES,
        )  # fmt: skip


@triton.jit
def _coefficients(
    tile, products_ptr, squares_ptr, scale_ptr, base_ptr, pre_ptr, post_ptr, comb_ptr,
    num_tokens, num_slices, inverse_size, eps,
    S: tl.constexpr, ROUNDS: tl.constexpr, TILE_T: tl.constexpr, TILE_SLICES: tl.constexpr,
):  # fmt: skip
    ROWS: tl.constexpr = S * (2 + S)
    token = tile.to(tl.int64) * TILE_T + tl.arange(0, TILE_T)
    is_token = token < num_tokens
    stream = tl.arange(0, S)
    pair = (stream[:, None] * S + stream[None, :])[None, :, :]
    index = tl.arange(0, TILE_SLICES)
    is_slice = is_token[:, None] & (index < num_slices)[None, :]
    place = index[None, :] * num_tokens + token[:, None]
    squares = tl.sum(tl.load(squares_ptr + place, mask=is_slice, other=0.0), 1)
    products = products_ptr + (place * ROWS)[:, :, None]
    is_slice = is_slice[:, :, None]
    pre = tl.sum(tl.load(products + stream[None, None, :], mask=is_slice, other=0.0), 1)
    post = tl.sum(tl.load(products + S + stream[None, None, :], mask=is_slice, other=0.0), 1)
    all_pairs = tl.arange(0, S * S)[None, None, :]
    comb = tl.sum(tl.load(products + 2 * S + all_pairs, mask=is_slice, other=0.0), 1)
    comb = tl.reshape(comb, (TILE_T, S, S))
    factor = tl.rsqrt(squares * inverse_size + _NORM_EPS)
    base = base_ptr + stream
    pre = pre * factor[:, None] * tl.load(scale_ptr) + tl.load(base)[None, :]
    post = post * factor[:, None] * tl.load(scale_ptr + 1) + tl.load(base + S)[None, :]
    comb = comb * factor[:, None, None] * tl.load(scale_ptr + 2) + tl.load(base_ptr + 2 * S + pair)
    comb = tl.exp(comb - tl.max(comb, 2)[:, :, None])
    # One division per sum, not per element.
    comb = comb * (1.0 / tl.sum(comb, 2))[:, :, None] + eps
    comb = comb * (1.0 / (tl.sum(comb, 1) + eps))[:, None, :]
    for _ in range(ROUNDS - 1):
        comb = comb * (1.0 / (tl.sum(comb, 2) + eps))[:, :, None]
        comb = comb * (1.0 / (tl.sum(comb, 1) + eps))[:, None, :]
    place = token[:, None] * S + stream[None, :]
    tl.store(pre_ptr + place, 1.0 / (1.0 + tl.exp(-pre)) + eps, mask=is_token[:, None])
    tl.store(post_ptr + place, 2.0 / (1.0 + tl.exp(-post)), mask=is_token[:, None])
    pairs = token[:, None, None] * (S * S) + pair
    tl.store(comb_ptr + pairs, comb, mask=is_token[:, None, None])
