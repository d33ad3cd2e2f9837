"""Packed weights in the format of the Gluon kernels for NVIDIA SM90: one fp32 scale per row.

MMAs over 128 of K then need no scale of the weight.  The block scales of a row differ by powers of
two, which fit into the exponent of E4M3: FP8 values are divided by the ratio of the row's largest
scale to their own; each block of 32 FP4 values keeps its exponent relative to the row, with which
kernels decode it to E4M3 on its way to the tensor cores.

FP4 is exact if the scales of a row span at most 2**11; blocks with smaller scales become 0.  FP8
values of at least 2**-6 times the row's largest scale are exact (E4M3 itself reaches 448), and
smaller ones are off by at most 2**-10 of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from deepinfer.kernels.quant import power_of_two

from .k_order import KOrder, fragment_order, plain_order
from .weights import Weight

COLUMNS = 64
STAGE = 256
_TOP_EXPONENT = 11  # of the row's largest scale, relative to the smallest that is kept
_PADDING = 256
_NUM_COUNTERS = 32768
_CHUNK = 16  # members at a time, which limits the memory of intermediate tensors


@dataclass(frozen=True, eq=False)
class HopperWeight:
    """E stacked weights [N, K].

    values [E N, K] e4m3fn, or FP4: [E N, K / 8] i32 of eight values, with ``exponents``
    [E N / 64, K / 256, 128] i32 of blocks of 32 relative to their row, see ``_pack_exponents``.
    row_scales [E N + 256] f32: scales of output channels; padded, as tiles may read past the end.
    order: of each 128 along K, here and in the activations.
    counters [32768] i32, only if gate and up rows alternate in runs of 64, instead of all gates
    followed by all ups: zeros, with which the programs of a kernel find out which of them finishes
    last.  Kernels reset them to zero; concurrent launches on the same weight are not allowed.
    """

    values: Tensor
    exponents: Tensor | None
    row_scales: Tensor
    members: int
    order: KOrder
    counters: Tensor | None = None

    @property
    def is_gated(self) -> bool:
        """Whether gate and up rows alternate."""
        return self.counters is not None

    @cached_property
    def num_rows(self) -> int:
        """N."""
        return (len(self.row_scales) - _PADDING) // self.members

    @cached_property
    def plain(self) -> Weight:
        """The same values for plain torch: [E, N, K] bf16; computed once, on first use."""
        values = self.values if self.exponents is None else recast_weight(self).values
        numbers = values.float() * self.row_scales[: len(values), None]
        if self.order is KOrder.FRAGMENT:
            numbers = plain_order(numbers)
        numbers = numbers.to(torch.bfloat16).view(self.members, self.num_rows, self.k)
        if self.is_gated:
            numbers = torch.unflatten(numbers, 1, (-1, 2, COLUMNS)).transpose(1, 2).flatten(1, 3)
        return Weight(numbers)

    @cached_property
    def as_one(self) -> HopperWeight:
        """The stack viewed as one weight [E N, K]."""
        return replace(self, members=1)

    @cached_property
    def k(self) -> int:
        return self.values.shape[1] * (1 if self.exponents is None else 8)


def prepare_gate_up(weight: Weight) -> HopperWeight | None:
    """``prepare_weight`` for gate rows followed by up rows; they alternate if each are a multiple
    of 128."""
    n = weight.values.shape[-2]
    if weight.scales is None or n % (4 * COLUMNS):
        return prepare_weight(weight)
    scales = weight.scales.view(torch.uint8)
    alternating = Weight(
        _alternating(weight.values, COLUMNS), _alternating(scales, COLUMNS * scales.shape[-2] // n)
    )
    prepared = prepare_weight(alternating)
    counters = torch.zeros(_NUM_COUNTERS, dtype=torch.int32, device=weight.values.device)
    return None if prepared is None else replace(prepared, counters=counters)


def _alternating(halves: Tensor, run: int) -> Tensor:
    """[..., 2 R, X]: interleave the first R rows with the second R in runs of ``run`` rows."""
    parts = torch.unflatten(halves, -2, (2, -1, run))
    return parts.transpose(-4, -3).flatten(-4, -2)


def prepare_weight(weight: Weight) -> HopperWeight | None:
    """``weight`` in the format of the SM90 kernels, or None if they do not support it.

    It must be packed, N a multiple of 64 and K of 256.
    """
    values, scales = weight.values, weight.scales
    if scales is None:
        return None
    is_fp4 = values.dtype == torch.int8
    n, k = values.shape[-2], values.shape[-1] * (2 if is_fp4 else 1)
    if n % COLUMNS or k % STAGE:
        return None
    members = values.shape[:-2].numel()
    rows = torch.split(values.reshape(members * n, -1), _CHUNK * n)
    exponents = scales.view(torch.uint8).reshape(-1, k // 32)
    blocks = torch.split(exponents, _CHUNK * len(exponents) // members)
    prepare = _prepare_fp4 if is_fp4 else _prepare_fp8
    parts = [prepare(*chunk) for chunk in zip(rows, blocks, strict=True)]
    relative = [part[1] for part in parts if part[1] is not None]
    return HopperWeight(
        torch.cat([part[0] for part in parts]),
        torch.cat(relative) if relative else None,
        functional.pad(torch.cat([part[2] for part in parts]), (0, _PADDING)),
        members,
        KOrder.FRAGMENT if is_fp4 else KOrder.PLAIN,
    )


def recast_weight(weight: HopperWeight) -> HopperWeight:
    """FP4 decoded to the same values in E4M3: twice the memory, but faster for many rows."""
    assert weight.exponents is not None
    words = torch.split(weight.values, _CHUNK * weight.num_rows)
    exponents = torch.split(weight.exponents, _CHUNK * weight.num_rows // COLUMNS)
    values = torch.cat([_recast(*chunk) for chunk in zip(words, exponents, strict=True)])
    return replace(weight, values=values, exponents=None)


def _recast(words: Tensor, exponents: Tensor) -> Tensor:
    """words [N, K / 8] i32 and exponents of their blocks -> [N, K] e4m3fn.

    Exponent and mantissa of E2M1 are the upper bits of those of E4M3, except for its one subnormal
    magnitude (code 1).  The block's exponent is added to the exponent field.
    """
    packed = _unpack_signs(words).view(torch.uint8)
    codes = torch.stack([packed & 15, packed >> 4], dim=-1).view(len(words), -1, 32)
    magnitudes = codes & 7
    shifted = 8 * _unpack_exponents(exponents).to(torch.uint8).view(len(words), -1, 1)
    numbers = 8 + 4 * magnitudes - 4 * (magnitudes == 1).to(torch.uint8) + shifted
    numbers = numbers * (magnitudes > 0).to(torch.uint8) | (codes & 8) << 4
    return fragment_order(numbers.view(len(words), -1)).view(torch.float8_e4m3fn)


def _prepare_fp8(values: Tensor, exponents: Tensor) -> tuple[Tensor, None, Tensor]:
    """values [N, K] e4m3fn, exponents [N / 32, K / 32] u8."""
    top = exponents.amax(1, keepdim=True)
    drop = exponents.to(torch.int32) - top.to(torch.int32)
    factor = torch.exp2(drop.float()).repeat_interleave(32, 0).repeat_interleave(32, 1)
    rows = power_of_two(top).repeat_interleave(32, 0)[:, 0]
    return (values.float() * factor).to(torch.float8_e4m3fn), None, rows


def _prepare_fp4(values: Tensor, exponents: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """values [N, K / 2] i8, exponents [N, K / 32] u8."""
    exponents = exponents.to(torch.int32)
    top = exponents.amax(1, keepdim=True)
    relative = _TOP_EXPONENT - top + exponents
    words = values.view(torch.int32).view(*relative.shape, 4)
    words = words.masked_fill((relative < 0)[..., None], 0).flatten(1)
    row_scales = power_of_two((top[:, 0] - 6).clamp(min=0))
    return _pack_signs(words), _pack_exponents(relative.clamp(min=0)), row_scales


_SIGNS = [4 * code + 3 for code in range(8)]
_SIGNS_PACKED = [8 * code + 7 for code in range(4)] + [8 * code + 3 for code in range(4)]


def _pack_signs(words: Tensor) -> Tensor:
    """i32 of eight E2M1 values: magnitudes stay, the signs of the first four move to the top bits
    of the bytes."""
    return _move_bits(words, _SIGNS, _SIGNS_PACKED)


def _unpack_signs(words: Tensor) -> Tensor:
    return _move_bits(words, _SIGNS_PACKED, _SIGNS)


def _move_bits(words: Tensor, sources: list[int], targets: list[int]) -> Tensor:
    moved = words & 0x77777777
    for source, target in zip(sources, targets, strict=True):
        moved |= ((words >> source) & 1) << target
    return moved


# For each byte of a word of exponents: row (the thread's first, or 8 below) and half of 256 along
# K.
_BYTES = [(0, 0), (0, 1), (1, 0), (1, 1)]


def _pack_exponents(exponents: Tensor) -> Tensor:
    """[N, K / 32] i32 -> [N / 64, K / 256, 128] i32: one word per thread of a tile of 64 x 256.

    Thread (warp, row of 8, block) owns rows ``warp * 16 + row`` and 8 below, in both halves of K.
    """
    n, blocks = exponents.shape
    # tile, warp, half of 16, bit 2, bits 1 and 0; stage, half of 256, block
    parts = exponents.view(n // 64, 4, 2, 2, 4, blocks // 8, 2, 4)
    words = torch.zeros_like(parts[:, :, 0, :, :, :, 0])
    for row, half in _BYTES:
        words |= parts[:, :, row, :, :, :, half] << (16 * half + 8 * row)
    # tile, warp, bit 2, bits 1 and 0, stage, block
    return words.permute(0, 4, 1, 3, 2, 5).reshape(n // 64, blocks // 8, 128)


def _unpack_exponents(words: Tensor) -> Tensor:
    """The inverse: [N, K / 32] i32."""
    tiles, stages, _ = words.shape
    parts = words.view(tiles, stages, 4, 4, 2, 4).permute(0, 2, 4, 3, 1, 5)
    spread = [(parts >> (16 * half + 8 * row)) & 255 for row, half in _BYTES]
    rows = [torch.stack(spread[2 * row : 2 * row + 2], dim=-2) for row in range(2)]
    return torch.stack(rows, dim=2).reshape(tiles * 64, stages * 8)
