"""Hyper-connections in Triton: three kernels from one sub-block to the next.

T tokens, S streams, d width.  The first expands and collapses the streams, the second multiplies
them by the mixing weights, for a piece of d at a time, so that few tokens fill a device.  The third
adds the pieces up to coefficients, normalises what was collapsed and quantises it.  Pieces and the
order of sums depend on d alone, never on T.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.errors import TensorError
from deepinfer.kernels.gemm.activations import Activations
from deepinfer.kernels.launch import check_tensor, describe, is_interpreted, matrix_dtype
from deepinfer.kernels.moe.pair_outputs import PairOutputs
from deepinfer.kernels.norm import NormedRows
from deepinfer.kernels.norm.triton_kernel import norm_layout, norm_operands, norm_warps
from deepinfer.kernels.quant.triton_bits import bf16_bits, bf16_operand, bf16_value, round_bf16

from .reference import Entrance, Entry, HyperMix, Mixer
from .triton_finish import finish_kernel

_PIECE = 64
_TILE_TOKENS = 16
_TILE_TOKENS_MIX = 64
_TILE_TOKENS_SUM = 4


def collapse_streams_triton(streams: Tensor, pre: Tensor) -> Tensor:
    """``collapse_streams_reference``."""
    collapsed = streams.new_empty(streams.shape[0], streams.shape[2])
    _pass_streams(streams, pre=pre, collapsed=collapsed)
    return collapsed


def expand_streams_triton(streams: Tensor, output: Tensor | PairOutputs, mix: HyperMix) -> Tensor:
    """``expand_streams_reference``."""
    expanded = torch.empty(streams.shape, dtype=streams.dtype, device=streams.device)
    _pass_streams(streams, output=output, mix=mix, expanded=expanded)
    return expanded


def enter_streams_triton(streams: Tensor, pre: Tensor, mixer: Mixer, entrance: Entrance) -> Entry:
    """``enter_streams_reference``."""
    collapsed = streams.new_empty(streams.shape[0], streams.shape[2])
    sums = _pass_streams(streams, pre=pre, collapsed=collapsed, mixer=mixer)
    return _finish(streams, collapsed, sums, mixer, entrance)


def advance_streams_triton(
    streams: Tensor, output: Tensor | PairOutputs, mix: HyperMix, mixer: Mixer, entrance: Entrance
) -> tuple[Tensor, Entry]:
    """``advance_streams_reference``."""
    expanded = torch.empty(streams.shape, dtype=streams.dtype, device=streams.device)
    collapsed = streams.new_empty(streams.shape[0], streams.shape[2])
    sums = _pass_streams(
        streams, output=output, mix=mix, expanded=expanded, pre=mix.pre, collapsed=collapsed,
        mixer=mixer,
    )  # fmt: skip
    return expanded, _finish(streams, collapsed, sums, mixer, entrance)


def _pass_streams(
    streams: Tensor,
    *,
    output: Tensor | PairOutputs | None = None,
    mix: HyperMix | None = None,
    expanded: Tensor | None = None,
    pre: Tensor | None = None,
    collapsed: Tensor | None = None,
    mixer: Mixer | None = None,
) -> Tensor:
    """Fills ``expanded`` and ``collapsed``; with a mixer returns, per piece and token, the products
    with each row of its weights, then the sum of squares: [pieces, T, rows + 1] f32."""
    if streams.dtype != torch.bfloat16 or streams.stride(2) != 1:
        raise TensorError(f"streams: expected bf16 [any, any, d], found {describe(streams)}")
    tokens, num_streams, width = streams.shape
    rows, pieces = num_streams * (2 + num_streams), triton.cdiv(width, _PIECE)
    bits = streams.view(torch.int16)
    added, pairs, pair_row = bits, bits, bits
    per_token = 0
    if output is not None and mix is not None:
        if isinstance(output, PairOutputs):
            per_token = len(output.row) // max(1, tokens)
            check_tensor("output.rows", output.rows, torch.bfloat16, (None, width), streams)
            check_tensor("output.row", output.row, torch.int32, (tokens * per_token,), streams)
            pairs, pair_row = output.rows.view(torch.int16), output.row
            output = output.added
        check_tensor("output", output, torch.bfloat16, (tokens, width), streams)
        added = output.view(torch.int16)
        square = (tokens, num_streams, num_streams)
        check_tensor("mix.post", mix.post, torch.float32, (tokens, num_streams), streams)
        check_tensor("mix.comb", mix.comb, torch.float32, square, streams)
    if pre is not None:
        pre = pre.contiguous()
        check_tensor("pre", pre, torch.float32, (tokens, num_streams), streams)
    sums, fn = streams.new_empty(0, dtype=torch.float32), bits
    if mixer is not None:
        full = num_streams * width
        check_tensor("fn", mixer.fn.values, torch.float32, (rows, full), streams)
        sums = sums.new_empty(pieces, tokens, rows + 1)
        fn = mixer.fn.bf16_parts.view(torch.int16)
    if tokens and (expanded is not None or collapsed is not None):
        stream_kernel[(triton.cdiv(tokens, _TILE_TOKENS), triton.cdiv(width, _PIECE))](
            bits, added, pairs, pair_row,
            bits if mix is None else mix.post,
            bits if mix is None else mix.comb,
            bits if expanded is None else expanded.view(torch.int16),
            bits if pre is None else pre,
            bits if collapsed is None else collapsed.view(torch.int16),
            tokens, width, streams.stride(0), streams.stride(1),
            S=num_streams, PER_TOKEN=per_token, EXPAND=expanded is not None,
            COLLAPSE=collapsed is not None, TILE_T=_TILE_TOKENS, TILE_D=_PIECE, num_warps=4,
            enable_fp_fusion=True,
        )  # fmt: skip
    if tokens and mixer is not None:
        mixed = streams if expanded is None else expanded
        # The interpreter's products of more rows depend on where a row stands.
        tile = 16 if is_interpreted() else _TILE_TOKENS_MIX
        mix_kernel[(triton.cdiv(tokens, tile), pieces)](
            mixed.view(torch.int16), fn, sums, tokens, width, mixed.stride(0), mixed.stride(1),
            S=num_streams, ROWS=rows, TILE_ROWS=max(16, triton.next_power_of_2(rows)),
            PIECE=_PIECE, TILE_T=tile, DOT=matrix_dtype(), num_warps=4, num_stages=3,
            enable_fp_fusion=True,
        )  # fmt: skip
    return sums


def _finish(
    streams: Tensor, collapsed: Tensor, sums: Tensor, mixer: Mixer, entrance: Entrance
) -> Entry:
    tokens, num_streams, width = streams.shape
    rows = num_streams * (2 + num_streams)
    if num_streams & (num_streams - 1):
        raise TensorError(f"streams: expected a power of two of streams: {describe(streams)}")
    check_tensor("scale", mixer.scale, torch.float32, (3,), streams)
    check_tensor("base", mixer.base, torch.float32, (rows,), streams)
    pre = sums.new_empty(tokens, num_streams)
    mix = HyperMix(pre, torch.empty_like(pre), sums.new_empty(tokens, num_streams, num_streams))
    normed = torch.empty_like(collapsed)
    acts = Activations.empty_for(entrance.linear, tokens, width)
    pairs, weight = norm_operands(collapsed, entrance.weight)
    if tokens:
        finish_kernel[(tokens + triton.cdiv(tokens, _TILE_TOKENS_SUM),)](
            pairs, weight, normed.view(torch.int32), *acts.writer,
            acts.scale_stride, entrance.eps,
            sums, mixer.scale, mixer.base, *mix,
            tokens, len(sums), 1.0 / (num_streams * width), mixer.eps,
            S=num_streams, ROUNDS=mixer.iterations, TILE_T=_TILE_TOKENS_SUM,
            TILE_PIECES=triton.next_power_of_2(len(sums)), **norm_layout(width, acts),
            num_warps=norm_warps(width), enable_fp_fusion=True,
        )  # fmt: skip
    return Entry(mix, NormedRows(normed, acts))


@triton.jit(do_not_specialize=["num_tokens"])
def stream_kernel(
    streams_ptr, added_ptr, pairs_ptr, pair_row_ptr, post_ptr, comb_ptr, expanded_ptr, pre_ptr,
    collapsed_ptr, num_tokens, width, token_stride, stream_stride,
    S: tl.constexpr, PER_TOKEN: tl.constexpr, EXPAND: tl.constexpr, COLLAPSE: tl.constexpr,
    TILE_T: tl.constexpr, TILE_D: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64) * TILE_T + tl.arange(0, TILE_T)
    is_token = token < num_tokens
    place = tl.program_id(1) * TILE_D + tl.arange(0, TILE_D)
    is_place = place < width
    is_value = is_token[:, None] & is_place[None, :]
    source = streams_ptr + token[:, None] * token_stride + place[None, :]
    row_place = token[:, None] * width + place[None, :]
    if EXPAND:
        output = bf16_value(tl.load(added_ptr + row_place, mask=is_value, other=0))
        if PER_TOKEN > 0:
            output = round_bf16(output + _pair_sum(
                pairs_ptr, pair_row_ptr, token, is_token, place, is_place, width,
                PER_TOKEN, TILE_T, TILE_D,
            ))  # fmt: skip
    collapsed = tl.zeros([TILE_T, TILE_D], tl.float32)
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
        bits = bf16_bits(collapsed).to(tl.int16)
        tl.store(collapsed_ptr + row_place, bits, mask=is_value)


@triton.jit(do_not_specialize=["num_tokens"])
def mix_kernel(
    streams_ptr, fn_ptr, sums_ptr, num_tokens, width, token_stride, stream_stride,
    S: tl.constexpr, ROWS: tl.constexpr, TILE_ROWS: tl.constexpr, PIECE: tl.constexpr,
    TILE_T: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """A piece of the streams times rows of ``fn``, and its sum of squares."""
    token = tl.program_id(0).to(tl.int64) * TILE_T + tl.arange(0, TILE_T)
    is_token = token < num_tokens
    place = tl.program_id(1) * PIECE + tl.arange(0, PIECE)
    is_place = place < width
    is_value = is_token[:, None] & is_place[None, :]
    fn_row = tl.arange(0, TILE_ROWS)
    is_weight = (fn_row < ROWS)[:, None] & is_place[None, :]
    products = tl.zeros([TILE_T, TILE_ROWS], tl.float32)
    squares = tl.zeros([TILE_T, PIECE], tl.float32)
    source = streams_ptr + token[:, None] * token_stride + place[None, :]
    for stream in range(S):
        bits = tl.load(source + stream * stream_stride, mask=is_value, other=0)
        for part in tl.static_range(3):
            row = (part * ROWS + fn_row)[:, None]
            weight_ptr = fn_ptr + row * (S * width) + stream * width + place[None, :]
            fn = bf16_operand(tl.load(weight_ptr, mask=is_weight, other=0), DOT)
            products = tl.dot(bf16_operand(bits, DOT), tl.trans(fn), products)
        x = bf16_value(bits)
        squares += x * x
    sums = sums_ptr + (tl.program_id(1) * num_tokens + token) * (ROWS + 1)
    is_product = is_token[:, None] & (fn_row < ROWS)[None, :]
    tl.store(sums[:, None] + fn_row[None, :], products, mask=is_product)
    tl.store(sums + ROWS, tl.sum(squares, 1), mask=is_token)


@triton.jit
def _pair_sum(
    pairs_ptr, pair_row_ptr, token, is_token, place, is_place, width,
    PER_TOKEN: tl.constexpr, TILE_T: tl.constexpr, TILE_D: tl.constexpr,
):  # fmt: skip
    """The rows of each token's choices, added in their order; -1: not here."""
    total = tl.zeros([TILE_T, TILE_D], tl.float32)
    for choice in tl.static_range(PER_TOKEN):
        row = tl.load(pair_row_ptr + token * PER_TOKEN + choice, mask=is_token, other=-1)
        is_here = (row >= 0)[:, None] & is_place[None, :]
        source = pairs_ptr + row.to(tl.int64)[:, None] * width + place[None, :]
        total += bf16_value(tl.load(source, mask=is_here, other=0))
    return total
