"""Activations as a matrix path reads them: quantised by blocks along K, zero-padded to 128."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.kernels.launch import bf16_pairs, has_native_fp8
from deepinfer.kernels.quant.triton_bits import (
    bf16_pair,
    e4m3_code,
    e4m3_value,
    e8m0_value,
    even_bf16,
    exponent_above,
    odd_bf16,
)

from .matrix_path import MatrixPath

GROUP = 128
_CHUNK = 1024


@dataclass(frozen=True)
class Activations:
    """R rows of K numbers; P is K rounded up to a multiple of 128.

    DECODED: values [R, P] bf16, rounded in blocks of 32, no scales.
    FP8: values [R, P] e4m3fn, scales [P/128, S] f32 with S >= R + 128, so that a tile may read on
    past its last row.  Rounding in blocks of 128 differs from the model's 32 only for numbers below
    2**-14 of the largest in the 128, because a power-of-two scale does not move the rounding of
    normal numbers.  With ``split`` each 128 has its even members first, as the even and odd nibbles
    of an FP4 weight want them.
    SCALED: values [R, P] e4m3fn, scales [R, P/32] u8 (E8M0).
    """

    values: Tensor
    scales: Tensor | None
    path: MatrixPath
    split: bool

    @staticmethod
    def empty(
        rows: int, k: int, path: MatrixPath, split: bool, device: torch.device
    ) -> Activations:
        """Uninitialised rows; ``split`` counts for the FP8 path only."""
        padded = -(-k // GROUP) * GROUP
        if path is MatrixPath.DECODED:
            values = torch.empty(rows, padded, dtype=torch.bfloat16, device=device)
            return Activations(values, None, path, False)
        values = torch.empty(rows, padded, dtype=torch.float8_e4m3fn, device=device)
        if path is MatrixPath.FP8:
            stride = (rows // GROUP + 2) * GROUP
            scales = torch.empty(padded // GROUP, stride, dtype=torch.float32, device=device)
            return Activations(values, scales, path, split)
        scales = torch.empty(rows, padded // 32, dtype=torch.uint8, device=device)
        return Activations(values, scales, path, False)

    @property
    def writer(self) -> tuple[Tensor, Tensor]:
        """Values and scales as ``store_quantized`` addresses them."""
        word = torch.int32 if self.scales is None else torch.uint8 if self.split else torch.int16
        values = self.values.view(word)
        return values, values if self.scales is None else self.scales

    @property
    def scale_stride(self) -> int:
        return 0 if self.scales is None else self.scales.stride(0)

    @property
    def layout(self) -> dict[str, int]:
        """Compile-time arguments of a kernel that calls ``store_quantized``."""
        return {
            "BLOCK": GROUP if self.path is MatrixPath.FP8 else 32,
            "PATH": int(self.path),
            "SPLIT": self.split,
            "NATIVE": has_native_fp8(self.values.device),
        }

    @property
    def num_chunks(self) -> int:
        """Programs a row takes, each a chunk of 1,024 numbers."""
        return -(-self.values.shape[1] // _CHUNK)


def quantize_activations(x: Tensor, path: MatrixPath, split: bool) -> Activations:
    """Shapes: x [R, K] bf16, K even.  Batch-invariant: yes."""
    rows, k = x.shape
    out = Activations.empty(rows, k, path, split, x.device)
    if rows:
        pairs = bf16_pairs("x", x)
        _quantize_kernel[(rows, out.num_chunks)](
            pairs,
            *out.writer,
            out.scale_stride,
            k // 2,
            out.values.shape[1],
            pairs.stride(0),
            **out.layout,
        )
    return out


@triton.jit
def _quantize_kernel(
    x,
    values,
    scales,
    scale_stride,
    num_pairs,
    padded,
    row_stride,
    BLOCK: tl.constexpr,
    PATH: tl.constexpr,
    SPLIT: tl.constexpr,
    NATIVE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    pair = chunk_pairs(tl.program_id(1), BLOCK)
    both = tl.load(x + row * row_stride + pair, mask=pair < num_pairs, other=0)
    store_quantized(
        even_bf16(both), odd_bf16(both), pair, values, scales, row, scale_stride, padded,
        BLOCK, PATH, SPLIT, NATIVE,
    )  # fmt: skip


@triton.jit
def chunk_pairs(chunk, BLOCK: tl.constexpr):
    """Positions of a chunk's pairs in its row: [1024 / BLOCK, BLOCK / 2]."""
    block = chunk * (1024 // BLOCK) + tl.arange(0, 1024 // BLOCK)
    return block[:, None] * (BLOCK // 2) + tl.arange(0, BLOCK // 2)[None, :]


@triton.jit
def store_quantized(
    even,
    odd,
    pair,
    values,
    scales,
    row,
    scale_stride,
    padded,
    BLOCK: tl.constexpr,
    PATH: tl.constexpr,
    SPLIT: tl.constexpr,
    NATIVE: tl.constexpr,
):
    """Quantise the even and odd numbers of a chunk, both [blocks, BLOCK / 2] f32, and store them.

    ``pair`` is from ``chunk_pairs``; ``values`` and ``scales`` are ``Activations.writer``.
    """
    even_size = tl.where(even == even, tl.abs(even), 0.0)
    odd_size = tl.where(odd == odd, tl.abs(odd), 0.0)
    largest = tl.max(tl.maximum(even_size, odd_size), axis=1)
    exponent = tl.minimum(exponent_above(tl.maximum(largest, 1e-4) * (1.0 / 448.0)), 246)
    even_code = _scaled_code(even, exponent, NATIVE)
    odd_code = _scaled_code(odd, exponent, NATIVE)
    inside = pair < padded // 2
    block = tl.max(pair, axis=1) // (BLOCK // 2)
    num_blocks = padded // BLOCK
    if PATH == 0:
        scale = e8m0_value(exponent)[:, None]
        even = tl.where(even == even, e4m3_value(even_code) * scale, even)
        odd = tl.where(odd == odd, e4m3_value(odd_code) * scale, odd)
        tl.store(values + row * (padded // 2) + pair, bf16_pair(even, odd), mask=inside)
    elif SPLIT:
        place = pair + (pair // 64) * 64
        tl.store(values + row * padded + place, even_code.to(tl.uint8), mask=inside)
        tl.store(values + row * padded + place + 64, odd_code.to(tl.uint8), mask=inside)
    else:
        words = even_code | (odd_code << 8)
        tl.store(values + row * (padded // 2) + pair, words.to(tl.int16), mask=inside)
    if PATH == 1:
        place = block.to(tl.int64) * scale_stride + row
        tl.store(scales + place, e8m0_value(exponent), mask=block < num_blocks)
    elif PATH == 2:
        place = row * num_blocks + block
        tl.store(scales + place, exponent.to(tl.uint8), mask=block < num_blocks)


@triton.jit
def _scaled_code(x, exponent, NATIVE: tl.constexpr):
    scaled = x * e8m0_value(254 - exponent)[:, None]
    clamped = tl.minimum(tl.maximum(scaled, -448.0), 448.0)
    return e4m3_code(tl.where(scaled == scaled, clamped, scaled), NATIVE)
