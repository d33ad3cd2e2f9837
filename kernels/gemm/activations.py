"""Activations in the format of a matrix path: block-quantized along K, K zero-padded to 128."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.kernels.launch import bf16_pairs, has_native_fp8, sizes
from deepinfer.kernels.quant.triton_bits import even_bf16, odd_bf16
from deepinfer.kernels.relaunch import launch

from .hopper_weights import HopperWeight
from .k_order import KOrder
from .matrix_path import MatrixPath
from .triton_blocks import block_tile, kept_pairs, store_quantized
from .weights import Weight

GROUP = 128
# Upper limit of a grid; programs loop over tiles, so that tiles without an expert cost nothing.
MOST_PROGRAMS = 8448
_TILE = 2048


@dataclass(frozen=True)
class Activations:
    """R rows of K values; P is K rounded up to a multiple of 128.

    DECODED: values [R, P] bf16, rounded to E4M3 in blocks of 32, no scales.
    FP8: values [R, P] e4m3fn, scales [P/128, S] f32 with S >= R + 128, so that a tile may read past
    the last row.  Rounding in blocks of 128 differs from the model's blocks of 32 only for values
    below 2**-14 of the largest of the 128, since a power-of-two scale does not change the rounding
    of normal numbers.
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
        """Uninitialized rows; ``order`` is used by the FP8 path only."""
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
        """Uninitialized rows in the format that ``quantized_linear`` takes for ``weight``."""
        device = weight.values.device
        path = MatrixPath.FP8 if isinstance(weight, HopperWeight) else MatrixPath.of(device)
        return Activations.empty(rows, k, path, weight.order, device)

    @property
    def writer(self) -> tuple[Tensor, Tensor]:
        """Values and scales in the dtypes in which ``store_quantized`` writes them."""
        is_split = self.order is KOrder.SPLIT
        word = torch.int32 if self.scales is None else torch.uint8 if is_split else torch.int16
        values = self.values.view(word)
        return values, values if self.scales is None else self.scales

    @property
    def scale_stride(self) -> int:
        return 0 if self.scales is None else self.scales.stride(0)

    @property
    def layout(self) -> dict[str, int]:
        """constexpr arguments of a kernel that calls ``store_quantized``."""
        block = GROUP if self.path is MatrixPath.FP8 else 32
        return {
            "NUM_BLOCKS": self.values.shape[1] // block,
            "BLOCK": block,
            "PATH": int(self.path),
            "ORDER": int(self.order),
            "NATIVE": has_native_fp8(self.values.device),
        }


def tiles_of(rows: int, layout: dict[str, int]) -> tuple[tuple[int], int]:
    """(grid, quantization blocks per tile) for ``rows`` rows."""
    tile = _TILE // layout["BLOCK"]
    return (min(-(-rows * layout["NUM_BLOCKS"] // tile), MOST_PROGRAMS),), tile


def quantize_activations(x: Tensor, path: MatrixPath, order: KOrder) -> Activations:
    """Quantize x [T, K] bf16, K even.  Batch-invariant: yes."""
    count, k = sizes("x", x, 2)
    out = Activations.empty(count, k, path, order, x.device)
    if count:
        pairs = bf16_pairs("x", x)
        grid, tile = tiles_of(count, out.layout)
        launch(quantize_kernel, grid)(
            pairs, count, *out.writer, out.scale_stride, pairs.stride(0), **out.layout,
            PAIRS=k // 2, TILE=tile, enable_fp_fusion=True,
        )  # fmt: skip
    return out


# Sizes that depend on the batch must not cause recompilation.
@triton.jit(do_not_specialize=["num_rows"])
def quantize_kernel(
    x, num_rows, values, scales, scale_stride, row_stride,
    NUM_BLOCKS: tl.constexpr, BLOCK: tl.constexpr, PATH: tl.constexpr, ORDER: tl.constexpr,
    NATIVE: tl.constexpr, PAIRS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    for tile in range(tl.program_id(0), tl.cdiv(num_rows * NUM_BLOCKS, TILE), tl.num_programs(0)):
        row, block, inside = block_tile(tile, num_rows, NUM_BLOCKS, TILE)
        pair = kept_pairs(block, BLOCK, ORDER)
        place = row.to(tl.int64)[:, None] * row_stride + pair
        both = tl.load(x + place, mask=inside[:, None] & (pair < PAIRS), other=0)
        store_quantized(
            even_bf16(both), odd_bf16(both), row, block, inside, values, scales, scale_stride,
            NUM_BLOCKS, BLOCK, PATH, ORDER, NATIVE,
        )  # fmt: skip
