"""Hyper-connections in Triton: three kernels from one sub-block to the next.

T tokens, S streams, d width.  The first expands and collapses the streams; the second multiplies
them by the mixing weights, split into slices of d so that few tokens fill a device.  The third sums
the slices to get coefficients, and normalizes and quantizes the collapsed rows.  Slices and the
order of sums depend on d alone, never on T.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.errors import TensorError
from deepinfer.kernels.gemm.activations import GROUP, Activations
from deepinfer.kernels.gemm.k_order import KOrder
from deepinfer.kernels.launch import (
    cdiv,
    check_tensor,
    describe,
    is_hopper,
    is_interpreted,
    matrix_dtype,
    next_power_of_2,
    sizes,
)
from deepinfer.kernels.moe.pair_outputs import PairOutputs
from deepinfer.kernels.norm import NormedRows
from deepinfer.kernels.norm.triton_kernel import norm_layout, norm_operands, norm_warps
from deepinfer.kernels.quant.triton_bits import bf16_bits, bf16_operand, bf16_value
from deepinfer.kernels.relaunch import launch

from .reference import Entrance, Entry, HyperMix, Mixer
from .triton_finish import finish_kernel
from .triton_pairs import added_up

_SLICE, _HOPPER_SLICE = 64, 160
_TILE_TOKENS = 16
_TILE_TOKENS_MIX = 64
_TILE_TOKENS_SUM = 8


def collapse_streams_triton(streams: Tensor, pre: Tensor) -> Tensor:
    """``collapse_streams_reference``."""
    _check_streams(streams)
    collapsed = streams.new_empty(streams.shape[0], streams.shape[2])
    _pass_streams(streams, None, None, None, _checked_pre(streams, pre), collapsed)
    return collapsed


def expand_streams_triton(streams: Tensor, output: Tensor | PairOutputs, mix: HyperMix) -> Tensor:
    """``expand_streams_reference``."""
    _check_streams(streams)
    _check_output(streams, output, mix)
    expanded = streams.new_empty(streams.shape)
    _pass_streams(streams, added_up(output), mix, expanded, None, None)
    return expanded


def enter_streams_triton(streams: Tensor, pre: Tensor, mixer: Mixer, entrance: Entrance) -> Entry:
    """``enter_streams_reference``."""
    _check_streams(streams)
    return _enter(streams, None, None, None, pre, mixer, entrance)


def advance_streams_triton(
    streams: Tensor, output: Tensor | PairOutputs, mix: HyperMix, mixer: Mixer, entrance: Entrance
) -> tuple[Tensor, Entry]:
    """``advance_streams_reference``."""
    _check_streams(streams)
    _check_output(streams, output, mix)
    expanded = streams.new_empty(streams.shape)
    entry = _enter(streams, added_up(output), mix, expanded, mix.pre, mixer, entrance)
    return expanded, entry


def _enter(
    streams: Tensor,
    output: Tensor | None,
    mix: HyperMix | None,
    expanded: Tensor | None,
    pre: Tensor,
    mixer: Mixer,
    entrance: Entrance,
) -> Entry:
    """Enter the streams; with ``expanded`` first expand them with ``output`` into it."""
    tokens, num_streams, width = streams.shape
    rows, pre = num_streams * (2 + num_streams), _checked_pre(streams, pre)
    check_tensor("fn", mixer.fn.values, torch.float32, (rows, num_streams * width), streams)
    collapsed = streams.new_empty(tokens, width)
    columns = _hopper_slice(streams, entrance)
    slices = cdiv(width, columns or _SLICE)
    products = pre.new_empty(slices, tokens, rows)
    squares = pre.new_empty(slices, tokens)
    if tokens and columns:
        from .gluon_launch import pass_streams_gluon

        pass_streams_gluon(streams, output, mix, expanded, pre, collapsed, mixer, products, squares)
    elif tokens:
        _pass_streams(streams, output, mix, expanded, pre, collapsed)
        _mix(streams if expanded is None else expanded, mixer, products, squares)
    return _finish(streams, collapsed, products, squares, mixer, entrance)


def _hopper_slice(streams: Tensor, entrance: Entrance) -> int | None:
    """Columns per slice if the Gluon kernels support these: four streams, blocks of 128; else None.

    Slices of 160 divide the model's width among 32 programs; four times as many fill 132 SMs.
    """
    _, num_streams, width = streams.shape
    fits = num_streams == 4 and width % GROUP == 0 and entrance.linear.order is not KOrder.SPLIT
    if not fits or not is_hopper(streams.device):
        return None
    return GROUP if width % _HOPPER_SLICE else _HOPPER_SLICE


def _check_streams(streams: Tensor) -> None:
    sizes("streams", streams, 3)
    if streams.dtype != torch.bfloat16 or streams.stride(2) != 1:
        raise TensorError(f"streams: expected bf16 [any, any, d], found {describe(streams)}")


def _check_output(streams: Tensor, output: Tensor | PairOutputs, mix: HyperMix) -> None:
    tokens, num_streams, width = streams.shape
    if isinstance(output, PairOutputs):
        check_tensor("output.rows", output.rows, torch.bfloat16, (None, width), streams)
        check_tensor("output.row", output.row, torch.int32, (None,), streams)
        if len(output.row) % max(1, tokens):
            raise TensorError(f"output.row: expected as many for each of {tokens} tokens")
        output = output.added
    check_tensor("output", output, torch.bfloat16, (tokens, width), streams)
    square = (tokens, num_streams, num_streams)
    check_tensor("mix.post", mix.post, torch.float32, (tokens, num_streams), streams)
    check_tensor("mix.comb", mix.comb, torch.float32, square, streams)


def _checked_pre(streams: Tensor, pre: Tensor) -> Tensor:
    pre = pre.contiguous()
    check_tensor("pre", pre, torch.float32, tuple(streams.shape[:2]), streams)
    return pre


def _pass_streams(
    streams: Tensor,
    output: Tensor | None,
    mix: HyperMix | None,
    expanded: Tensor | None,
    pre: Tensor | None,
    collapsed: Tensor | None,
) -> None:
    """Fill ``expanded``, which needs output and mix, and ``collapsed``, which needs pre."""
    tokens, num_streams, width = streams.shape
    bits = streams.view(torch.int16)
    if tokens:
        # Slices of the same tokens are adjacent in the grid, so that whole rows are read.
        launch(stream_kernel, (cdiv(width, _SLICE), cdiv(tokens, _TILE_TOKENS)))(
            bits, bits if output is None else output.view(torch.int16),
            bits if mix is None else mix.post,
            bits if mix is None else mix.comb,
            bits if expanded is None else expanded.view(torch.int16),
            bits if pre is None else pre,
            bits if collapsed is None else collapsed.view(torch.int16),
            tokens, width, streams.stride(0), streams.stride(1),
            S=num_streams, EXPAND=expanded is not None,
            COLLAPSE=collapsed is not None, TILE_T=_TILE_TOKENS, TILE_D=_SLICE, num_warps=4,
            enable_fp_fusion=True,
        )  # fmt: skip


def _mix(streams: Tensor, mixer: Mixer, products: Tensor, squares: Tensor) -> None:
    """Fill, for each slice of the streams, its dot products with the rows of the mixing weights,
    ``products`` [slices, T, rows], and its sum of ``squares`` [slices, T], f32."""
    slices, tokens, rows = products.shape
    # With more rows, the interpreter's dot of a row depends on its position.
    tile = 16 if is_interpreted() else _TILE_TOKENS_MIX
    launch(mix_kernel, (cdiv(tokens, tile), slices))(
        streams.view(torch.int16), mixer.fn.bf16_parts.view(torch.int16), products, squares,
        tokens, streams.shape[2], streams.stride(0), streams.stride(1),
        S=streams.shape[1], ROWS=rows, TILE_ROWS=max(16, next_power_of_2(rows)),
        SLICE=_SLICE, TILE_T=tile, DOT=matrix_dtype(), num_warps=4, num_stages=3,
        enable_fp_fusion=True,
    )  # fmt: skip


def _finish(
    streams: Tensor,
    collapsed: Tensor,
    products: Tensor,
    squares: Tensor,
    mixer: Mixer,
    entrance: Entrance,
) -> Entry:
    tokens, num_streams, width = streams.shape
    rows = num_streams * (2 + num_streams)
    if num_streams & (num_streams - 1):
        raise TensorError(f"streams: expected a power of two of streams: {describe(streams)}")
    check_tensor("scale", mixer.scale, torch.float32, (3,), streams)
    check_tensor("base", mixer.base, torch.float32, (rows,), streams)
    pre = squares.new_empty(tokens, num_streams)
    comb = squares.new_empty(tokens, num_streams, num_streams)
    mix = HyperMix(pre, torch.empty_like(pre), comb)
    acts = Activations.empty_for(entrance.linear, tokens, width)
    if tokens and _hopper_slice(streams, entrance):
        from .gluon_launch import finish_streams_gluon

        finish_streams_gluon(collapsed, products, squares, mixer, entrance, mix, acts)
        return Entry(mix, NormedRows(collapsed, acts))
    normed = torch.empty_like(collapsed)
    pairs, weight = norm_operands(collapsed, entrance.weight)
    if tokens:
        launch(finish_kernel, (tokens + cdiv(tokens, _TILE_TOKENS_SUM),))(
            pairs, weight, normed.view(torch.int32), *acts.writer,
            acts.scale_stride, entrance.eps,
            products, squares, mixer.scale, mixer.base, *mix,
            tokens, len(squares), 1.0 / (num_streams * width), mixer.eps,
            S=num_streams, ROUNDS=mixer.iterations, TILE_T=_TILE_TOKENS_SUM,
            TILE_SLICES=next_power_of_2(len(squares)), **norm_layout(width, acts),
            num_warps=norm_warps(width), enable_fp_fusion=True,
        )  # fmt: skip
    return Entry(mix, NormedRows(normed, acts))


@triton.jit(do_not_specialize=["num_tokens"])
def stream_kernel(
    streams_ptr, added_ptr, post_ptr, comb_ptr, expanded_ptr, pre_ptr, collapsed_ptr,
    num_tokens, width, token_stride, stream_stride,
    S: tl.constexpr, EXPAND: tl.constexpr, COLLAPSE: tl.constexpr, TILE_T: tl.constexpr,
    TILE_D: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(1).to(tl.int64) * TILE_T + tl.arange(0, TILE_T)
    is_token = token < num_tokens
    place = tl.program_id(0) * TILE_D + tl.arange(0, TILE_D)
    is_place = place < width
    is_value = is_token[:, None] & is_place[None, :]
    source = streams_ptr + token[:, None] * token_stride + place[None, :]
    row_place = token[:, None] * width + place[None, :]
    if EXPAND:
        output = bf16_value(tl.load(added_ptr + row_place, mask=is_value, other=0))
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
    streams_ptr, fn_ptr, products_ptr, squares_ptr, num_tokens, width, token_stride, stream_stride,
    S: tl.constexpr, ROWS: tl.constexpr, TILE_ROWS: tl.constexpr, SLICE: tl.constexpr,
    TILE_T: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """A slice of the streams times the rows of ``fn``, and its sum of squares."""
    token = tl.program_id(0).to(tl.int64) * TILE_T + tl.arange(0, TILE_T)
    is_token = token < num_tokens
    place = tl.program_id(1) * SLICE + tl.arange(0, SLICE)
    is_place = place < width
    is_value = is_token[:, None] & is_place[None, :]
    fn_row = tl.arange(0, TILE_ROWS)
    is_weight = (fn_row < ROWS)[:, None] & is_place[None, :]
    products = tl.zeros([TILE_T, TILE_ROWS], tl.float32)
    squares = tl.zeros([TILE_T, SLICE], tl.float32)
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
    place = tl.program_id(1).to(tl.int64) * num_tokens + token
    is_product = is_token[:, None] & (fn_row < ROWS)[None, :]
    tl.store(products_ptr + place[:, None] * ROWS + fn_row[None, :], products, mask=is_product)
    tl.store(squares_ptr + place, tl.sum(squares, 1), mask=is_token)
