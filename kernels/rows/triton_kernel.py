"""Norm, rotation, quantization and packing of rows in one Triton kernel, each step optional.

N rows of D values, processed as D/2 pairs: a rotation acts on pairs, a byte of FP4 is a pair.
"""

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
from deepinfer.kernels.quant.triton_bits import (
    bf16_pair,
    e2m1_code,
    e4m3_code,
    e4m3_pair,
    e4m3_value,
    e8m0_value,
    even_bf16,
    exponent_above,
    odd_bf16,
    rounded_pair,
)
from deepinfer.kernels.relaunch import launch
from deepinfer.kernels.rope.checks import check_rope

from .reference import RowFormat

_TILE_PAIRS = 2048
# Output formats of the kernel (FORM).
_BF16, _FP8, _FP4, _FP4_E4M3 = range(4)
_CODES = {"window": _FP8, "index": _FP4, "main": _FP4_E4M3}


def rms_norm_triton(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``rms_norm_reference`` of x [..., D] bf16, whose row stride may exceed D."""
    out = torch.empty(x.shape, dtype=torch.bfloat16, device=x.device)
    _launch(x, _BF16, bf16_pairs("out", out), weight=weight, eps=eps)
    return out


def apply_rope_triton(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool = False) -> Tensor:
    """``apply_rope_reference``."""
    out = torch.empty(x.shape, dtype=torch.bfloat16, device=x.device)
    _launch(x, _BF16, bf16_pairs("out", out), rope=(cos, sin), inverse=inverse)
    return out


def pack_latents_triton(
    x: Tensor,
    rope: tuple[Tensor, Tensor],
    row_format: RowFormat,
    *,
    weight: Tensor | None = None,
    eps: float = 0.0,
) -> Tensor:
    """``pack_latents_reference``."""
    num_bytes = _row_bytes(row_format, _width(x))
    packed = torch.empty(*x.shape[:-1], num_bytes, dtype=torch.uint8, device=x.device)
    _launch_packed(x, rope, row_format, packed.view(-1, num_bytes), None, weight, eps)
    return packed


def store_latents_triton(
    x: Tensor,
    rope: tuple[Tensor, Tensor],
    row_format: RowFormat,
    cache: Tensor,
    rows: Tensor,
    *,
    weight: Tensor | None = None,
    eps: float = 0.0,
) -> None:
    """``store_latents_reference``; the row stride of ``cache`` may exceed the row's bytes."""
    tokens, _ = sizes("x", x, 2)
    check_tensor("rows", rows, torch.int64, (tokens,), x)
    _launch_packed(x, rope, row_format, cache, rows, weight, eps)


def row_parts(row_format: RowFormat, cache: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Views of the values and scales of packed rows of x [..., D], as ``row_tile`` writes them.

    Raises: TensorError if the dtype or shape of ``cache`` does not fit.
    """
    width, is_here = x.shape[-1], cache.device == x.device
    num_bytes = _row_bytes(row_format, width)
    is_packed = cache.dtype == torch.uint8 and cache.shape[1:] == (num_bytes,)
    if not (is_here and is_packed and cache.stride(-1) == 1):
        raise TensorError(
            f"cache: expected uint8 [any, {num_bytes}] on {x.device}, found {describe(cache)}"
        )
    codes = _CODES[row_format]
    values = cache[:, : width // (1 if codes == _FP8 else 2)]
    scales = cache[:, values.shape[1] :]
    if codes == _FP8 and cache.stride(0) % 2 == 0:
        values = values.view(torch.int16)
    return values, scales


def _width(x: Tensor) -> int:
    """D of x [..., D].  Raises: TensorError if x has less than two dimensions."""
    if x.dim() < 2:
        raise TensorError(f"x: expected two dimensions or more, found {describe(x)}")
    return x.shape[-1]


def _row_bytes(row_format: RowFormat, width: int) -> int:
    return {"window": width + width // 32, "main": width // 2 + width // 16}.get(
        row_format, width // 2 + width // 32
    )


def _launch_packed(
    x: Tensor,
    rope: tuple[Tensor, Tensor],
    row_format: RowFormat,
    cache: Tensor,
    rows: Tensor | None,
    weight: Tensor | None,
    eps: float,
) -> None:
    values, scales = row_parts(row_format, cache, x)
    _launch(x, _CODES[row_format], values, scales, weight=weight, eps=eps, rope=rope, rows=rows)


def _launch(
    x: Tensor,
    form: int,
    values: Tensor,
    scales: Tensor | None = None,
    *,
    weight: Tensor | None = None,
    eps: float = 0.0,
    rope: tuple[Tensor, Tensor] | None = None,
    inverse: bool = False,
    rows: Tensor | None = None,
) -> None:
    width = _width(x)
    if x.dim() > 2:
        x = x.reshape(-1, width)
    pairs = bf16_pairs("x", x)
    if form != _BF16 and width % 32:
        raise TensorError(f"x: expected a multiple of 32 values per row, found {describe(x)}")
    if weight is not None:
        check_tensor("weight", weight, bf16_or_f32(weight), (width,), x)
    tokens, rotary_pairs = len(x), 0
    if rope is not None:
        check_rope(rope, width, x)
        tokens, rotary_pairs = rope[0].shape[0], rope[0].shape[1] // 2
        if tokens and len(x) % tokens:
            raise TensorError(f"rope: {tokens} positions do not divide {len(x)} rows")
    if not len(x):
        return
    tile_pairs = max(16, next_power_of_2(width // 2))
    tile_rows = max(1, _TILE_PAIRS // tile_pairs)
    cos, sin = rope if rope is not None else (x, x)
    scales = x if scales is None else scales
    launch(row_kernel, (cdiv(len(x), tile_rows),))(
        pairs, _words(x if weight is None else weight), cos, sin, rows,
        values, scales, len(x), pairs.stride(0), values.stride(-2), scales.stride(-2),
        len(x) // max(tokens, 1), eps,
        D=width, ROTARY=rotary_pairs, INVERSE=inverse, HAS_NORM=weight is not None,
        WEIGHT_BF16=weight is not None and weight.dtype == torch.bfloat16,
        HAS_ROWS=rows is not None, FORM=form, FP8_PAIRS=values.dtype == torch.int16,
        TILE_ROWS=tile_rows, TILE_PAIRS=tile_pairs, NATIVE=has_native_fp8(x.device),
        num_warps=8 if tile_pairs > _TILE_PAIRS else 4, enable_fp_fusion=False,
    )  # fmt: skip


def _words(weight: Tensor) -> Tensor:
    return bf16_pairs("weight", weight) if weight.dtype == torch.bfloat16 else weight


@triton.jit(do_not_specialize=["num_rows", "rows_per_token"])
def row_kernel(
    x_ptr, weight_ptr, cos_ptr, sin_ptr, rows_ptr, values_ptr, scales_ptr,
    num_rows, x_stride, values_stride, scales_stride, rows_per_token, eps,
    D: tl.constexpr, ROTARY: tl.constexpr, INVERSE: tl.constexpr, HAS_NORM: tl.constexpr,
    WEIGHT_BF16: tl.constexpr, HAS_ROWS: tl.constexpr, FORM: tl.constexpr,
    FP8_PAIRS: tl.constexpr,
    TILE_ROWS: tl.constexpr, TILE_PAIRS: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    row_tile(
        tl.program_id(0), x_ptr, weight_ptr, cos_ptr, sin_ptr, rows_ptr, values_ptr, scales_ptr,
        num_rows, x_stride, values_stride, scales_stride, rows_per_token, eps, D, ROTARY, INVERSE,
        HAS_NORM, WEIGHT_BF16, HAS_ROWS, FORM, FP8_PAIRS, TILE_ROWS, TILE_PAIRS, NATIVE,
    )  # fmt: skip


@triton.jit
def row_tile(
    tile, x_ptr, weight_ptr, cos_ptr, sin_ptr, rows_ptr, values_ptr, scales_ptr,
    num_rows, x_stride, values_stride, scales_stride, rows_per_token, eps,
    D: tl.constexpr, ROTARY: tl.constexpr, INVERSE: tl.constexpr, HAS_NORM: tl.constexpr,
    WEIGHT_BF16: tl.constexpr, HAS_ROWS: tl.constexpr, FORM: tl.constexpr,
    FP8_PAIRS: tl.constexpr,
    TILE_ROWS: tl.constexpr, TILE_PAIRS: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    row = tile.to(tl.int64) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    is_row = row < num_rows
    pair = tl.arange(0, TILE_PAIRS)[None, :]
    is_value = is_row[:, None] & (pair < D // 2)
    packed = tl.load(x_ptr + row[:, None] * x_stride + pair, mask=is_value, other=0)
    even, odd = even_bf16(packed), odd_bf16(packed)
    if HAS_NORM:
        mean_square = tl.sum(even * even + odd * odd, 1) * (1.0 / D)
        factor = tl.rsqrt(mean_square + eps)[:, None]
        if WEIGHT_BF16:
            w_both = tl.load(weight_ptr + pair, mask=pair < D // 2, other=0)
            w_even, w_odd = even_bf16(w_both), odd_bf16(w_both)
        else:
            w_even = tl.load(weight_ptr + 2 * pair, mask=pair < D // 2, other=0)
            w_odd = tl.load(weight_ptr + 2 * pair + 1, mask=pair < D // 2, other=0)
        even, odd = rounded_pair(w_even * (even * factor), w_odd * (odd * factor), NATIVE)
    if ROTARY > 0:
        rotary_pair = pair - (D // 2 - ROTARY)
        # triton-ascend 3.2 drops loads of every second value from non-contiguous rows, unless it
        # cannot analyze the address; hence the maximum, which the mask makes irrelevant.
        place = 2 * ((row // rows_per_token)[:, None] * ROTARY + tl.maximum(rotary_pair, 0))
        is_rotary = is_value & (rotary_pair >= 0)
        cos = tl.load(cos_ptr + place, mask=is_rotary, other=1.0)
        sin = tl.load(sin_ptr + place + 1, mask=is_rotary, other=0.0)
        sin = -sin if INVERSE else sin
        rotated_even, rotated_odd = rounded_pair(
            even * cos - odd * sin, odd * cos + even * sin, NATIVE
        )
        # Pairs that are not rotated keep their bits, including infinities.
        even = tl.where(rotary_pair >= 0, rotated_even, even)
        odd = tl.where(rotary_pair >= 0, rotated_odd, odd)

    target = row
    if HAS_ROWS:
        target = tl.load(rows_ptr + row, mask=is_row, other=-1)
    is_target = (target >= 0)[:, None] & is_value
    value_ptr = values_ptr + target[:, None] * values_stride + pair
    if FORM == 0:
        tl.store(value_ptr, bf16_pair(even, odd, NATIVE), mask=is_target)
    elif FORM == 3:
        even, odd, scale = _scaled_by_e4m3(even, odd, TILE_ROWS, TILE_PAIRS, NATIVE)
        tl.store(value_ptr, (e2m1_code(even) | (e2m1_code(odd) << 4)).to(tl.uint8), mask=is_target)
        _store_scales(scales_ptr, scale, target, is_row, scales_stride, D // 16, TILE_PAIRS // 8)
    else:
        LIMIT: tl.constexpr = 6.0 if FORM == 2 else 448.0
        MIN_AMAX: tl.constexpr = 7.052966104933725e-38 if FORM == 2 else 1e-4
        even, odd, exponent = _scaled_by_power(even, odd, LIMIT, MIN_AMAX, TILE_ROWS, TILE_PAIRS)
        if FORM == 2:
            codes = e2m1_code(even) | (e2m1_code(odd) << 4)
            tl.store(value_ptr, codes.to(tl.uint8), mask=is_target)
        else:
            codes = e4m3_pair(even, odd, NATIVE)
            if FP8_PAIRS:
                tl.store(value_ptr, codes, mask=is_target)
            else:
                tl.store(value_ptr + pair, codes.to(tl.uint8), mask=is_target)
                tl.store(value_ptr + pair + 1, (codes >> 8).to(tl.uint8), mask=is_target)
        exponent = tl.minimum(exponent, 246)
        _store_scales(
            scales_ptr, exponent, target, is_row, scales_stride, D // 32, TILE_PAIRS // 16
        )


@triton.jit
def _scaled_by_power(
    even, odd, LIMIT: tl.constexpr, MIN_AMAX: tl.constexpr, ROWS: tl.constexpr, PAIRS: tl.constexpr
):
    """Values divided by a power-of-two scale per 32, clamped to +-LIMIT; and the scales' biased
    exponents [ROWS, PAIRS / 16]."""
    amax = tl.maximum(_block_amax(even, odd, ROWS, PAIRS, 16), MIN_AMAX)
    exponent = exponent_above(amax * (1.0 / LIMIT))
    # In a block with infinity every finite value becomes 0.
    inverse = tl.where(exponent < 255, e8m0_value(254 - exponent), 0.0)
    inverse = _spread(inverse, ROWS, PAIRS, 16)
    even = tl.minimum(tl.maximum(even * inverse, -LIMIT), LIMIT)
    odd = tl.minimum(tl.maximum(odd * inverse, -LIMIT), LIMIT)
    return even, odd, exponent


@triton.jit
def _scaled_by_e4m3(even, odd, ROWS: tl.constexpr, PAIRS: tl.constexpr, NATIVE: tl.constexpr):
    """Values divided by an E4M3 scale per 16; and the scales [ROWS, PAIRS / 8] as E4M3 bits."""
    amax = tl.maximum(_block_amax(even, odd, ROWS, PAIRS, 8), 0.01171875)
    code = e4m3_code(tl.minimum(tl.div_rn(amax, 6.0), 448.0), NATIVE)
    scale = _spread(e4m3_value(code), ROWS, PAIRS, 8)
    return tl.div_rn(even, scale), tl.div_rn(odd, scale), code


@triton.jit
def _block_amax(even, odd, ROWS: tl.constexpr, PAIRS: tl.constexpr, SIZE: tl.constexpr):
    largest = tl.maximum(tl.abs(even), tl.abs(odd))
    return tl.max(tl.reshape(largest, (ROWS, PAIRS // SIZE, SIZE)), 2)


@triton.jit
def _spread(blocks, ROWS: tl.constexpr, PAIRS: tl.constexpr, SIZE: tl.constexpr):
    """[ROWS, PAIRS / SIZE] -> [ROWS, PAIRS], each value repeated SIZE times."""
    spread = tl.broadcast_to(blocks[:, :, None], (ROWS, PAIRS // SIZE, SIZE))
    return tl.reshape(spread, (ROWS, PAIRS))


@triton.jit
def _store_scales(
    ptr, scales, target, is_row, stride, COUNT: tl.constexpr, TILE_BLOCKS: tl.constexpr
):
    block = tl.arange(0, TILE_BLOCKS)[None, :]
    is_target = (is_row & (target >= 0))[:, None] & (block < COUNT)
    tl.store(ptr + target[:, None] * stride + block, scales.to(tl.uint8), mask=is_target)
