"""Engram in Triton: n-gram hash, table rows, gated addition.  T tokens, S streams, d width."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.errors import TensorError
from deepinfer.kernels.launch import (
    bf16_or_f32,
    bf16_pairs,
    cdiv,
    check_tensor,
    describe,
    has_native_fp8,
    next_power_of_2,
    sizes,
)
from deepinfer.kernels.placement import is_reached
from deepinfer.kernels.quant.triton_bits import (
    bf16_pair,
    e4m3_values,
    e8m0_value,
    even_bf16,
    odd_bf16,
)
from deepinfer.kernels.relaunch import launch

_TILE_TOKENS = 64
_BLOCK = 32
_TILE_BLOCKS = 128
_TILE_PAIRS = 1024
_NORM_EPS = 1e-20
_MIN_DOT = 1e-6


def engram_hash_triton(
    lookback: Tensor, multipliers: Tensor, primes: Tensor, offsets: Tensor
) -> Tensor:
    """``engram_hash_reference``; ids must not be negative."""
    tokens, reach = sizes("lookback", lookback, 2)
    _, heads = sizes("primes", primes, 2)
    check_tensor("lookback", lookback, torch.int64, (tokens, reach), lookback)
    check_tensor("multipliers", multipliers, torch.int64, (reach,), lookback)
    check_tensor("primes", primes, torch.int64, (reach - 1, heads), lookback)
    check_tensor("offsets", offsets, torch.int64, (reach - 1, heads), lookback)
    rows = torch.empty(tokens, (reach - 1) * heads, dtype=torch.int64, device=lookback.device)
    if rows.numel():
        launch(hash_kernel, (cdiv(tokens, _TILE_TOKENS),))(
            lookback, multipliers, primes, offsets, rows, tokens,
            REACH=reach, HEADS=heads, TILE_HEADS=next_power_of_2(heads),
            TILE_T=_TILE_TOKENS, num_warps=4, enable_fp_fusion=True,
        )  # fmt: skip
    return rows


def engram_lookup_triton(table: Tensor, scales: Tensor, rows: Tensor) -> Tensor:
    """``engram_lookup_reference``; the table may be in host memory that kernels can access."""
    _, width = sizes("table", table, 2)
    for name, held, dtype in (
        ("table", table, torch.float8_e4m3fn),
        ("scales", scales, torch.float8_e8m0fnu),
    ):
        is_near = is_reached(held, rows.device)
        if held.dtype != dtype or not held.is_contiguous() or not is_near:
            raise TensorError(
                f"{name}: expected contiguous {dtype} on {rows.device} or in pinned memory, "
                f"found {describe(held)}"
            )
    if width % _BLOCK or scales.shape != (len(table), width // _BLOCK):
        raise TensorError(f"scales: expected one per 32 values, found {describe(scales)}")
    check_tensor("rows", rows, torch.int64, (None, None), rows)
    out = torch.empty(len(rows), rows.shape[1] * width, dtype=torch.bfloat16, device=rows.device)
    if out.numel():
        blocks = rows.numel() * (width // _BLOCK)
        launch(lookup_kernel, (cdiv(blocks, _TILE_BLOCKS),))(
            table.view(torch.int16), scales.view(torch.uint8), rows, bf16_pairs("out", out),
            blocks, BLOCKS=width // _BLOCK, TILE=_TILE_BLOCKS,
            NATIVE=has_native_fp8(rows.device), num_warps=4, enable_fp_fusion=True,
        )  # fmt: skip
    return out


def engram_gate_triton(
    streams: Tensor, key_value: Tensor, q_weight: Tensor, k_weight: Tensor
) -> Tensor:
    """``engram_gate_reference``."""
    tokens, num_streams, width = sizes("streams", streams, 3)
    check_tensor(
        "key_value", key_value, torch.bfloat16, (tokens, (num_streams + 1) * width), streams
    )
    check_tensor("q_weight", q_weight, bf16_or_f32(q_weight), (num_streams, width), streams)
    check_tensor("k_weight", k_weight, q_weight.dtype, (num_streams, width), streams)
    out = torch.empty(streams.shape, dtype=torch.bfloat16, device=streams.device)
    is_bf16 = q_weight.dtype == torch.bfloat16
    weights = [bf16_pairs("weight", w) if is_bf16 else w for w in (q_weight, k_weight)]
    pairs = bf16_pairs("streams", streams)
    if out.numel():
        launch(gate_kernel, (tokens, num_streams))(
            pairs, bf16_pairs("key_value", key_value), *weights, bf16_pairs("out", out),
            pairs.stride(0), pairs.stride(1), width**-0.5,
            D=width, WEIGHT_BF16=is_bf16, NORM_EPS=_NORM_EPS, MIN_DOT=_MIN_DOT,
            TILE_PAIRS=_TILE_PAIRS, num_warps=4, enable_fp_fusion=True,
        )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["num_tokens"])
def hash_kernel(
    lookback_ptr, multipliers_ptr, primes_ptr, offsets_ptr, rows_ptr, num_tokens,
    REACH: tl.constexpr, HEADS: tl.constexpr, TILE_HEADS: tl.constexpr, TILE_T: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64) * TILE_T + tl.arange(0, TILE_T)
    is_token = token < num_tokens
    head = tl.arange(0, TILE_HEADS)
    is_head = head < HEADS
    ids = tl.load(lookback_ptr + token * REACH, mask=is_token, other=0)
    mixed = ids * tl.load(multipliers_ptr)
    for order in tl.static_range(1, REACH):
        ids = tl.load(lookback_ptr + token * REACH + order, mask=is_token, other=0)
        mixed = mixed ^ (ids * tl.load(multipliers_ptr + order))
        column = (order - 1) * HEADS + head
        prime = tl.load(primes_ptr + column, mask=is_head, other=1)
        offset = tl.load(offsets_ptr + column, mask=is_head, other=0)
        row = mixed[:, None] % prime[None, :] + offset[None, :]
        place = token[:, None] * ((REACH - 1) * HEADS) + column[None, :]
        tl.store(rows_ptr + place, row, mask=is_token[:, None] & is_head[None, :])


@triton.jit(do_not_specialize=["num_blocks"])
def lookup_kernel(
    table_ptr, scales_ptr, rows_ptr, out_ptr, num_blocks,
    BLOCKS: tl.constexpr, TILE: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """Blocks of 32 values with one scale each, BLOCKS per row."""
    target = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    inside = target < num_blocks
    row = tl.load(rows_ptr + target // BLOCKS, mask=inside, other=0)
    source = row * BLOCKS + target % BLOCKS
    pair = tl.arange(0, 16)[None, :]
    codes = tl.load(table_ptr + source[:, None] * 16 + pair, mask=inside[:, None], other=0)
    scale = e8m0_value(tl.load(scales_ptr + source, mask=inside, other=0))[:, None]
    even, odd = e4m3_values(codes, NATIVE)
    values = bf16_pair(even * scale, odd * scale, NATIVE)
    tl.store(out_ptr + target[:, None] * 16 + pair, values, mask=inside[:, None])


@triton.jit
def gate_kernel(
    streams_ptr, key_value_ptr, q_weight_ptr, k_weight_ptr, out_ptr,
    token_stride, stream_stride, scale,
    D: tl.constexpr, WEIGHT_BF16: tl.constexpr, NORM_EPS: tl.constexpr, MIN_DOT: tl.constexpr,
    TILE_PAIRS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    stream = tl.program_id(1)
    PAIRS: tl.constexpr = D // 2
    x_ptr = streams_ptr + token * token_stride + stream * stream_stride
    keys_ptr = key_value_ptr + token * (tl.num_programs(1) + 1) * PAIRS
    dots = tl.zeros([TILE_PAIRS], tl.float32)
    x_squares = tl.zeros([TILE_PAIRS], tl.float32)
    key_squares = tl.zeros([TILE_PAIRS], tl.float32)
    for first in range(0, PAIRS, TILE_PAIRS):
        pair = first + tl.arange(0, TILE_PAIRS)
        is_pair = pair < PAIRS
        x = tl.load(x_ptr + pair, mask=is_pair, other=0)
        key = tl.load(keys_ptr + stream * PAIRS + pair, mask=is_pair, other=0)
        for odd in tl.static_range(2):
            weight = _half(q_weight_ptr, stream * PAIRS + pair, is_pair, odd, WEIGHT_BF16)
            weight *= _half(k_weight_ptr, stream * PAIRS + pair, is_pair, odd, WEIGHT_BF16)
            one_x = odd_bf16(x) if odd else even_bf16(x)
            one_key = odd_bf16(key) if odd else even_bf16(key)
            dots += one_x * weight * one_key
            x_squares += one_x * one_x
            key_squares += one_key * one_key
    dot = tl.sum(dots, 0) * tl.rsqrt(tl.sum(x_squares, 0) * (1.0 / D) + NORM_EPS)
    dot = dot * tl.rsqrt(tl.sum(key_squares, 0) * (1.0 / D) + NORM_EPS) * scale
    strength = tl.sqrt(tl.maximum(tl.abs(dot), MIN_DOT))
    gate = 1.0 / (1.0 + tl.exp(tl.where(dot < 0.0, strength, -strength)))
    for first in range(0, PAIRS, TILE_PAIRS):
        pair = first + tl.arange(0, TILE_PAIRS)
        is_pair = pair < PAIRS
        x = tl.load(x_ptr + pair, mask=is_pair, other=0)
        value = tl.load(keys_ptr + tl.num_programs(1) * PAIRS + pair, mask=is_pair, other=0)
        even = even_bf16(x) + gate * even_bf16(value)
        odd = odd_bf16(x) + gate * odd_bf16(value)
        target = out_ptr + (token * tl.num_programs(1) + stream) * PAIRS + pair
        tl.store(target, bf16_pair(even, odd), mask=is_pair)


@triton.jit
def _half(ptr, pair, is_pair, ODD: tl.constexpr, IS_BF16: tl.constexpr):
    """The even or odd elements of pairs of bf16 (an i32 each) or of fp32."""
    if IS_BF16:
        both = tl.load(ptr + pair, mask=is_pair, other=0)
        number = odd_bf16(both) if ODD else even_bf16(both)
    else:
        number = tl.load(ptr + 2 * pair + ODD, mask=is_pair, other=0.0)
    return number
