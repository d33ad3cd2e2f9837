"""Hyper-connections in Triton: streams expanded and collapsed in one pass, then mixed.

T tokens, S streams, d width.  The mix is a product with few columns: one kernel makes it for pieces
of d, so that few tokens fill a device, the next adds the pieces.  Pieces and the order of sums
depend on d alone, never on T.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.errors import TensorError
from deepinfer.kernels.gemm import Weight
from deepinfer.kernels.launch import check_tensor, describe, is_interpreted, matrix_dtype
from deepinfer.kernels.quant.triton_bits import bf16_bits, bf16_operand, bf16_value

from .reference import HyperMix

_PIECE = 128
_TILE_WIDTH = 64
_TILE_TOKENS = 16
_TILE_TOKENS_MIX = 64
_TILE_TOKENS_SUM = 2
_NORM_EPS = 1e-20


def hyper_mix_triton(
    streams: Tensor, fn: Weight, scale: Tensor, base: Tensor, *, iterations: int, eps: float
) -> HyperMix:
    """``hyper_mix_reference``."""
    sums = _piece_sums(streams, fn)
    return _coefficients(streams, sums, scale, base, iterations, eps)


def collapse_streams_triton(streams: Tensor, pre: Tensor) -> Tensor:
    """``collapse_streams_reference``."""
    collapsed = streams.new_empty(streams.shape[0], streams.shape[2])
    _pass_streams(streams, pre=pre, collapsed=collapsed)
    return collapsed


def expand_streams_triton(streams: Tensor, output: Tensor, mix: HyperMix) -> Tensor:
    """``expand_streams_reference``."""
    expanded = torch.empty(streams.shape, dtype=streams.dtype, device=streams.device)
    _pass_streams(streams, output=output, mix=mix, expanded=expanded)
    return expanded


def advance_streams_triton(
    streams: Tensor,
    output: Tensor,
    mix: HyperMix,
    fn: Weight,
    scale: Tensor,
    base: Tensor,
    *,
    iterations: int,
    eps: float,
) -> tuple[Tensor, HyperMix, Tensor]:
    """``advance_streams``."""
    expanded = torch.empty(streams.shape, dtype=streams.dtype, device=streams.device)
    collapsed = streams.new_empty(streams.shape[0], streams.shape[2])
    _pass_streams(
        streams, output=output, mix=mix, expanded=expanded, pre=mix.pre, collapsed=collapsed
    )
    next_mix = hyper_mix_triton(expanded, fn, scale, base, iterations=iterations, eps=eps)
    return expanded, next_mix, collapsed


def _piece_sums(streams: Tensor, fn: Weight) -> Tensor:
    """Per piece and token: the products with each row of ``fn``, then the sum of squares;
    [pieces, T, rows + 1] f32."""
    tokens, num_streams, width = _checked(streams)
    rows = num_streams * (2 + num_streams)
    check_tensor("fn", fn.values, torch.float32, (rows, num_streams * width), streams)
    pieces = triton.cdiv(width, _PIECE)
    sums = torch.empty(pieces, tokens, rows + 1, dtype=torch.float32, device=streams.device)
    # The interpreter's products of more rows depend on where a row stands.
    tile_tokens = 16 if is_interpreted() else _TILE_TOKENS_MIX
    if tokens:
        mix_kernel[(triton.cdiv(tokens, tile_tokens), pieces)](
            streams.view(torch.int16), fn.bf16_parts.view(torch.int16), sums,
            tokens, width, streams.stride(0), streams.stride(1),
            S=num_streams, ROWS=rows, TILE_ROWS=max(16, triton.next_power_of_2(rows)),
            PIECE=_PIECE, TILE_T=tile_tokens, TILE_D=_TILE_WIDTH, DOT=matrix_dtype(),
            num_warps=4, num_stages=3, enable_fp_fusion=True,
        )  # fmt: skip
    return sums


def _checked(streams: Tensor) -> torch.Size:
    if streams.dtype != torch.bfloat16 or streams.stride(2) != 1:
        raise TensorError(f"streams: expected bf16 [any, any, d], found {describe(streams)}")
    return streams.shape


def _pass_streams(
    streams: Tensor,
    *,
    output: Tensor | None = None,
    mix: HyperMix | None = None,
    expanded: Tensor | None = None,
    pre: Tensor | None = None,
    collapsed: Tensor | None = None,
) -> None:
    tokens, num_streams, width = _checked(streams)
    bits = streams.view(torch.int16)
    unused = bits
    if output is not None and mix is not None and expanded is not None:
        check_tensor("output", output, torch.bfloat16, (tokens, width), streams)
        check_tensor("mix.post", mix.post, torch.float32, (tokens, num_streams), streams)
        check_tensor(
            "mix.comb", mix.comb, torch.float32, (tokens, num_streams, num_streams), streams
        )
    if pre is not None:
        pre = pre.contiguous()
        check_tensor("pre", pre, torch.float32, (tokens, num_streams), streams)
    if not tokens:
        return
    grid = (triton.cdiv(tokens, _TILE_TOKENS), triton.cdiv(width, _TILE_WIDTH))
    stream_kernel[grid](
        bits,
        unused if output is None else output.view(torch.int16),
        unused if mix is None else mix.post,
        unused if mix is None else mix.comb,
        unused if expanded is None else expanded.view(torch.int16),
        unused if pre is None else pre,
        unused if collapsed is None else collapsed.view(torch.int16),
        tokens, width, streams.stride(0), streams.stride(1),
        S=num_streams, EXPAND=expanded is not None, COLLAPSE=collapsed is not None,
        TILE_T=_TILE_TOKENS, TILE_D=_TILE_WIDTH, num_warps=4, enable_fp_fusion=True,
    )  # fmt: skip


def _coefficients(
    streams: Tensor, sums: Tensor, scale: Tensor, base: Tensor, iterations: int, eps: float
) -> HyperMix:
    tokens, num_streams, width = streams.shape
    rows = num_streams * (2 + num_streams)
    if num_streams & (num_streams - 1):
        raise TensorError(f"streams: expected a power of two of streams: {describe(streams)}")
    check_tensor("scale", scale, torch.float32, (3,), streams)
    check_tensor("base", base, torch.float32, (rows,), streams)
    pre = sums.new_empty(tokens, num_streams)
    mix = HyperMix(pre, torch.empty_like(pre), sums.new_empty(tokens, num_streams, num_streams))
    if tokens:
        coefficient_kernel[(triton.cdiv(tokens, _TILE_TOKENS_SUM),)](
            sums, scale, base, *mix, tokens, len(sums), 1.0 / (num_streams * width), eps,
            S=num_streams, ROUNDS=iterations, NORM_EPS=_NORM_EPS, TILE_T=_TILE_TOKENS_SUM,
            TILE_PIECES=triton.next_power_of_2(len(sums)), num_warps=1, enable_fp_fusion=True,
        )  # fmt: skip
    return mix


@triton.jit(do_not_specialize=["num_tokens"])
def stream_kernel(
    streams_ptr, output_ptr, post_ptr, comb_ptr, expanded_ptr, pre_ptr, collapsed_ptr,
    num_tokens, width, token_stride, stream_stride,
    S: tl.constexpr, EXPAND: tl.constexpr, COLLAPSE: tl.constexpr,
    TILE_T: tl.constexpr, TILE_D: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64) * TILE_T + tl.arange(0, TILE_T)
    is_token = token < num_tokens
    place = tl.program_id(1) * TILE_D + tl.arange(0, TILE_D)
    is_value = is_token[:, None] & (place < width)[None, :]
    source = streams_ptr + token[:, None] * token_stride + place[None, :]
    collapsed = tl.zeros([TILE_T, TILE_D], tl.float32)
    if EXPAND:
        output_place = token[:, None] * width + place[None, :]
        output = bf16_value(tl.load(output_ptr + output_place, mask=is_value, other=0))
    for stream in tl.static_range(S):
        if EXPAND:
            x = tl.zeros([TILE_T, TILE_D], tl.float32)
            for origin in tl.static_range(S):
                comb_place = (token * S + origin) * S + stream
                comb = tl.load(comb_ptr + comb_place, mask=is_token, other=0.0)
                bits = tl.load(source + origin * stream_stride, mask=is_value, other=0)
                x += comb[:, None] * bf16_value(bits)
            post = tl.load(post_ptr + token * S + stream, mask=is_token, other=0.0)
            bits = bf16_bits(post[:, None] * output + x).to(tl.int16)
            target = (token[:, None] * S + stream) * width + place[None, :]
            tl.store(expanded_ptr + target, bits, mask=is_value)
        else:
            bits = tl.load(source + stream * stream_stride, mask=is_value, other=0)
        if COLLAPSE:
            pre = tl.load(pre_ptr + token * S + stream, mask=is_token, other=0.0)
            collapsed += pre[:, None] * bf16_value(bits)
    if COLLAPSE:
        collapsed_place = token[:, None] * width + place[None, :]
        bits = bf16_bits(collapsed).to(tl.int16)
        tl.store(collapsed_ptr + collapsed_place, bits, mask=is_value)


@triton.jit(do_not_specialize=["num_tokens"])
def mix_kernel(
    streams_ptr, fn_ptr, sums_ptr, num_tokens, width, token_stride, stream_stride,
    S: tl.constexpr, ROWS: tl.constexpr, TILE_ROWS: tl.constexpr, PIECE: tl.constexpr,
    TILE_T: tl.constexpr, TILE_D: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64) * TILE_T + tl.arange(0, TILE_T)
    is_token = token < num_tokens
    fn_row = tl.arange(0, TILE_ROWS)
    products = tl.zeros([TILE_T, TILE_ROWS], tl.float32)
    squares = tl.zeros([TILE_T], tl.float32)
    for step in range(S * PIECE // TILE_D):
        stream = step % S
        place = tl.program_id(1) * PIECE + (step // S) * TILE_D + tl.arange(0, TILE_D)
        is_place = place < width
        source = streams_ptr + token[:, None] * token_stride + stream * stream_stride
        is_value = is_token[:, None] & is_place[None, :]
        bits = tl.load(source + place[None, :], mask=is_value, other=0)
        is_weight = (fn_row < ROWS)[:, None] & is_place[None, :]
        for part in tl.static_range(3):
            row = (part * ROWS + fn_row)[:, None]
            weight_ptr = fn_ptr + row * (S * width) + stream * width + place[None, :]
            fn = bf16_operand(tl.load(weight_ptr, mask=is_weight, other=0), DOT)
            products = tl.dot(bf16_operand(bits, DOT), tl.trans(fn), products)
        x = bf16_value(bits)
        squares += tl.sum(x * x, 1)
    sums = sums_ptr + (tl.program_id(1) * num_tokens + token) * (ROWS + 1)
    is_product = is_token[:, None] & (fn_row < ROWS)[None, :]
    tl.store(sums[:, None] + fn_row[None, :], products, mask=is_product)
    tl.store(sums + ROWS, squares, mask=is_token)


@triton.jit(do_not_specialize=["num_tokens"])
def coefficient_kernel(
    sums_ptr, scale_ptr, base_ptr, pre_ptr, post_ptr, comb_ptr,
    num_tokens, num_pieces, inverse_size, eps,
    S: tl.constexpr, ROUNDS: tl.constexpr, NORM_EPS: tl.constexpr, TILE_T: tl.constexpr,
    TILE_PIECES: tl.constexpr,
):  # fmt: skip
    ROWS: tl.constexpr = S * (2 + S)
    token = tl.program_id(0).to(tl.int64) * TILE_T + tl.arange(0, TILE_T)
    is_token = token < num_tokens
    stream = tl.arange(0, S)
    pair = (stream[:, None] * S + stream[None, :])[None, :, :]
    piece = tl.arange(0, TILE_PIECES)
    is_piece = is_token[:, None] & (piece < num_pieces)[None, :]
    sums = sums_ptr + (piece[None, :] * num_tokens + token[:, None]) * (ROWS + 1)
    squares = tl.sum(tl.load(sums + ROWS, mask=is_piece, other=0.0), 1)
    place = sums[:, :, None] + stream[None, None, :]
    pre = tl.sum(tl.load(place, mask=is_piece[:, :, None], other=0.0), 1)
    post = tl.sum(tl.load(place + S, mask=is_piece[:, :, None], other=0.0), 1)
    all_pairs = tl.arange(0, S * S)[None, None, :]
    place = sums[:, :, None] + 2 * S + all_pairs
    comb = tl.sum(tl.load(place, mask=is_piece[:, :, None], other=0.0), 1)
    comb = tl.reshape(comb, (TILE_T, S, S))
    factor = tl.rsqrt(squares * inverse_size + NORM_EPS)
    base = base_ptr + stream
    pre = pre * factor[:, None] * tl.load(scale_ptr) + tl.load(base)[None, :]
    post = post * factor[:, None] * tl.load(scale_ptr + 1) + tl.load(base + S)[None, :]
    comb = comb * factor[:, None, None] * tl.load(scale_ptr + 2) + tl.load(base_ptr + 2 * S + pair)
    comb = tl.exp(comb - tl.max(comb, 2)[:, :, None])
    comb = comb / tl.sum(comb, 2)[:, :, None] + eps
    comb = comb / (tl.sum(comb, 1)[:, None, :] + eps)
    for _ in range(ROUNDS - 1):
        comb = comb / (tl.sum(comb, 2)[:, :, None] + eps)
        comb = comb / (tl.sum(comb, 1)[:, None, :] + eps)
    place = token[:, None] * S + stream[None, :]
    tl.store(pre_ptr + place, 1.0 / (1.0 + tl.exp(-pre)) + eps, mask=is_token[:, None])
    tl.store(post_ptr + place, 2.0 / (1.0 + tl.exp(-post)), mask=is_token[:, None])
    pairs = token[:, None, None] * (S * S) + pair
    tl.store(comb_ptr + pairs, comb, mask=is_token[:, None, None])
