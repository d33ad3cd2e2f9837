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
    e4m3_pair,
    e4m3_value,
    e8m0_value,
    even_bf16,
    exponent_above,
    odd_bf16,
)

from .expert_rows import ExpertRows
from .hopper_weights import HopperWeight
from .k_order import KOrder
from .matrix_path import MatrixPath
from .weights import Weight

GROUP = 128
# Rows are shared out among so many programs: those of no expert cost nothing then.
MOST_PROGRAMS = 2048
_CHUNK = 1024


@dataclass(frozen=True)
class Activations:
    """R rows of K numbers; P is K rounded up to a multiple of 128.

    DECODED: values [R, P] bf16, rounded in blocks of 32, no scales.
    FP8: values [R, P] e4m3fn, scales [P/128, S] f32 with S >= R + 128, so that a tile may read on
    past its last row.  Rounding in blocks of 128 differs from the model's 32 only for numbers below
    2**-14 of the largest in the 128, because a power-of-two scale does not move the rounding of
    normal numbers.
    SCALED: values [R, P] e4m3fn, scales [R, P/32] u8 (E8M0).
    """

    values: Tensor
    scales: Tensor | None
    path: MatrixPath
    order: KOrder

    @staticmethod
    def empty(
        rows: int, k: int, path: MatrixPath, order: KOrder, device: torch.device
    ) -> Activations:
        """Uninitialised rows; ``order`` counts for the FP8 path only."""
        padded = -(-k // GROUP) * GROUP
        if path is MatrixPath.DECODED:
            values = torch.empty(rows, padded, dtype=torch.bfloat16, device=device)
            return Activations(values, None, path, KOrder.PLAIN)
        values = torch.empty(rows, padded, dtype=torch.float8_e4m3fn, device=device)
        if path is MatrixPath.FP8:
            stride = (rows // GROUP + 2) * GROUP
            scales = torch.empty(padded // GROUP, stride, dtype=torch.float32, device=device)
            return Activations(values, scales, path, order)
        scales = torch.empty(rows, padded // 32, dtype=torch.uint8, device=device)
        return Activations(values, scales, path, KOrder.PLAIN)

    @staticmethod
    def empty_for(weight: Weight | HopperWeight, rows: int, k: int) -> Activations:
        """Uninitialised rows as ``quantized_linear`` wants them for ``weight`` on its device."""
        device = weight.values.device
        path = MatrixPath.FP8 if isinstance(weight, HopperWeight) else MatrixPath.of(device)
        return Activations.empty(rows, k, path, weight.order, device)

    @property
    def writer(self) -> tuple[Tensor, Tensor]:
        """Values and scales as ``store_quantized`` addresses them."""
        is_split = self.order is KOrder.SPLIT
        word = torch.int32 if self.scales is None else torch.uint8 if is_split else torch.int16
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
            "ORDER": int(self.order),
            "NATIVE": has_native_fp8(self.values.device),
        }

    @property
    def num_chunks(self) -> int:
        """Programs a row takes, each a chunk of 1,024 numbers."""
        return -(-self.values.shape[1] // _CHUNK)


def quantize_activations(
    x: Tensor, path: MatrixPath, order: KOrder, rows: ExpertRows | None = None
) -> Activations:
    """Shapes: x [T, K] bf16, K even; returns T rows, or those of ``rows``.

    Batch-invariant: yes.
    """
    count, k = len(x) if rows is None else len(rows.pair), x.shape[1]
    out = Activations.empty(count, k, path, order, x.device)
    if count:
        pairs = bf16_pairs("x", x)
        _quantize_kernel[(min(count, MOST_PROGRAMS), out.num_chunks)](
            pairs,
            pairs if rows is None else rows.pair,
            pairs if rows is None else rows.used,
            count,
            *out.writer,
            out.scale_stride,
            k // 2,
            out.values.shape[1],
            pairs.stride(0),
            **out.layout,
            PER_TOKEN=0 if rows is None else rows.per_token,
            enable_fp_fusion=True,
        )
    return out


# Sizes that follow the batch must not make new variants of the kernel.
@triton.jit(do_not_specialize=["num_rows"])
def _quantize_kernel(
    x,
    row_pair,
    used,
    num_rows,
    values,
    scales,
    scale_stride,
    num_pairs,
    padded,
    row_stride,
    BLOCK: tl.constexpr,
    PATH: tl.constexpr,
    ORDER: tl.constexpr,
    NATIVE: tl.constexpr,
    PER_TOKEN: tl.constexpr,
):
    pair = chunk_pairs(tl.program_id(1), BLOCK)
    end = tl.load(used) if PER_TOKEN > 0 else num_rows
    # The next rows are on their way while one is rounded.
    for place in tl.range(tl.program_id(0), end, tl.num_programs(0), num_stages=3):
        row = tl.cast(place, tl.int64)
        source = row
        if PER_TOKEN > 0:  # rows that only fill a tile take any token
            source = (tl.maximum(tl.load(row_pair + row), 0) // PER_TOKEN).to(tl.int64)
        both = tl.load(x + source * row_stride + pair, mask=pair < num_pairs, other=0)
        store_quantized(
            even_bf16(both), odd_bf16(both), pair, values, scales, row, scale_stride, padded,
            BLOCK, PATH, ORDER, NATIVE,
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
    ORDER: tl.constexpr,
    NATIVE: tl.constexpr,
):
    """Quantise the even and odd numbers of a chunk, both [blocks, BLOCK / 2] f32, and store them.

    ``pair`` is from ``chunk_pairs``; ``values`` and ``scales`` are ``Activations.writer``.
    """
    even_size = tl.where(even == even, tl.abs(even), 0.0)
    odd_size = tl.where(odd == odd, tl.abs(odd), 0.0)
    largest = tl.max(tl.maximum(even_size, odd_size), axis=1)
    exponent = tl.minimum(exponent_above(tl.maximum(largest, 1e-4) * (1.0 / 448.0)), 246)
    even, odd = _scaled(even, exponent), _scaled(odd, exponent)
    inside = pair < padded // 2
    block = tl.max(pair, axis=1) // (BLOCK // 2)
    num_blocks = padded // BLOCK
    if PATH == 0:
        scale = e8m0_value(exponent)[:, None]
        even = tl.where(even == even, e4m3_value(e4m3_code(even, NATIVE)) * scale, even)
        odd = tl.where(odd == odd, e4m3_value(e4m3_code(odd, NATIVE)) * scale, odd)
        tl.store(values + row * (padded // 2) + pair, bf16_pair(even, odd), mask=inside)
    elif ORDER == 1:
        place = values + row * padded + pair + (pair // 64) * 64
        tl.store(place, e4m3_code(even, NATIVE).to(tl.uint8), mask=inside)
        tl.store(place + 64, e4m3_code(odd, NATIVE).to(tl.uint8), mask=inside)
    else:
        codes = e4m3_pair(even, odd, NATIVE)
        if ORDER == 2:  # number 32 t + 8 i + 4 h + j moves to 32 i + 16 h + 4 t + j
            parts = tl.reshape(codes, (codes.shape[0], 4, 8, 2))
            codes = tl.reshape(tl.permute(parts, (0, 2, 1, 3)), codes.shape)
        tl.store(values + row * (padded // 2) + pair, codes, mask=inside)
    if PATH == 1:
        place = block.to(tl.int64) * scale_stride + row
        tl.store(scales + place, e8m0_value(exponent), mask=block < num_blocks)
    elif PATH == 2:
        place = row * num_blocks + block
        tl.store(scales + place, exponent.to(tl.uint8), mask=block < num_blocks)


@triton.jit
def _scaled(x, exponent):
    scaled = x * e8m0_value(254 - exponent)[:, None]
    clamped = tl.minimum(tl.maximum(scaled, -448.0), 448.0)
    return tl.where(scaled == scaled, clamped, scaled)
