"""Packed weights as the Gluon kernels of NVIDIA SM90 want them: one fp32 factor for each row.

The matrix unit then sums 128 products without any scale of the weight.  Scales of a row differ by
powers of two, which E4M3 holds in its own exponent: FP8 numbers are divided by the steps down to
the row's largest scale, FP4 codes keep four bits for the steps of each block of 32 (and become
E4M3 on their way into the matrix unit).

Exact for FP4 while the scales of a row span at most 2**11; blocks further down count as 0.  For FP8
numbers of at least 2**-6 of the row's largest scale are exact (E4M3 itself reaches up to 448), and
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
_STEPS = 11
_PADDING = 256
_TURNS = 32768
_CHUNK = 16  # members at a time, for the memory that intermediate numbers take


@dataclass(frozen=True, eq=False)
class HopperWeight:
    """E stacked weights [N, K].

    values [E N, K] e4m3fn, or [E N, K / 8] i32 with ``steps`` [E N / 64, K / 256, 128] i32.
    factors [E N + 256] f32: what a row's sums are multiplied by; a tile may read on past the end.
    ``order`` of each 128 inputs, here and in the activations.
    ``turns`` [32768] i32, if N rows of gates and ups alternate, 64 by 64, instead of one half and
    then the other: zeros, where programs of a kernel count who is done, and leave zeros; two
    launches of it at the same time would need one each.
    """

    values: Tensor
    steps: Tensor | None
    factors: Tensor
    members: int
    order: KOrder
    turns: Tensor | None = None

    @property
    def is_gated(self) -> bool:
        """Whether gates and ups alternate."""
        return self.turns is not None

    @cached_property
    def num_rows(self) -> int:
        """N."""
        return (len(self.factors) - _PADDING) // self.members

    @cached_property
    def plain(self) -> Weight:
        """The same numbers for plain torch: [E, N, K] bf16; made once, on first use."""
        values = self.values if self.steps is None else recast_weight(self).values
        numbers = values.float() * self.factors[: len(values), None]
        if self.order is KOrder.FRAGMENT:
            numbers = plain_order(numbers)
        numbers = numbers.to(torch.bfloat16).view(self.members, self.num_rows, self.k)
        if self.is_gated:
            numbers = torch.unflatten(numbers, 1, (-1, 2, COLUMNS)).transpose(1, 2).flatten(1, 3)
        return Weight(numbers)

    @cached_property
    def as_one(self) -> HopperWeight:
        """The same rows as those of one weight [E N, K]."""
        return replace(self, members=1)

    @cached_property
    def k(self) -> int:
        return self.values.shape[1] * (1 if self.steps is None else 8)


def prepare_gate_up(weight: Weight) -> HopperWeight | None:
    """The same of gates, then ups, which must be a multiple of 128 each to alternate."""
    n = weight.values.shape[-2]
    if weight.scales is None or n % (4 * COLUMNS):
        return prepare_weight(weight)
    scales = weight.scales.view(torch.uint8)
    alternating = Weight(
        _alternating(weight.values, COLUMNS), _alternating(scales, COLUMNS * scales.shape[-2] // n)
    )
    prepared = prepare_weight(alternating)
    turns = torch.zeros(_TURNS, dtype=torch.int32, device=weight.values.device)
    return None if prepared is None else replace(prepared, turns=turns)


def _alternating(halves: Tensor, run: int) -> Tensor:
    """[..., 2 R, X]: ``run`` rows of the first R, as many of the second, and so on."""
    parts = torch.unflatten(halves, -2, (2, -1, run))
    return parts.transpose(-4, -3).flatten(-4, -2)


def prepare_weight(weight: Weight) -> HopperWeight | None:
    """``weight`` for the kernels of SM90; None if they do not take it: plain or of an odd size.

    N must be a multiple of 64 and K of 256.
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
    steps = [part[1] for part in parts if part[1] is not None]
    return HopperWeight(
        torch.cat([part[0] for part in parts]),
        torch.cat(steps) if steps else None,
        functional.pad(torch.cat([part[2] for part in parts]), (0, _PADDING)),
        members,
        KOrder.FRAGMENT if is_fp4 else KOrder.PLAIN,
    )


def recast_weight(weight: HopperWeight) -> HopperWeight:
    """FP4 as the same numbers in E4M3: twice the memory, for ranks that multiply many rows."""
    assert weight.steps is not None
    words = torch.split(weight.values, _CHUNK * weight.num_rows)
    steps = torch.split(weight.steps, _CHUNK * weight.num_rows // COLUMNS)
    values = torch.cat([_recast(*chunk) for chunk in zip(words, steps, strict=True)])
    return replace(weight, values=values, steps=None)


def _recast(words: Tensor, steps: Tensor) -> Tensor:
    """words [N, K / 8] i32 and their steps -> [N, K] e4m3fn.

    Exponent and mantissa of E2M1 are the upper bits of E4M3's, but for its one subnormal magnitude,
    1.  A step counts one of the exponent.
    """
    packed = _unpack_signs(words).view(torch.uint8)
    codes = torch.stack([packed & 15, packed >> 4], dim=-1).view(len(words), -1, 32)
    magnitudes = codes & 7
    shifted = 8 * _unpack_steps(steps).to(torch.uint8).view(len(words), -1, 1)
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
    steps = _STEPS - top + exponents
    words = values.view(torch.int32).view(*steps.shape, 4)
    words = words.masked_fill((steps < 0)[..., None], 0).flatten(1)
    factors = power_of_two((top[:, 0] - 6).clamp(min=0))
    return _pack_signs(words), _pack_steps(steps.clamp(min=0)), factors


_SIGNS = [4 * code + 3 for code in range(8)]
_SIGNS_PACKED = [8 * code + 7 for code in range(4)] + [8 * code + 3 for code in range(4)]


def _pack_signs(words: Tensor) -> Tensor:
    """i32 of eight codes: magnitudes stay; signs of the first four go to the tops of the bytes."""
    return _move_bits(words, _SIGNS, _SIGNS_PACKED)


def _unpack_signs(words: Tensor) -> Tensor:
    return _move_bits(words, _SIGNS_PACKED, _SIGNS)


def _move_bits(words: Tensor, sources: list[int], targets: list[int]) -> Tensor:
    moved = words & 0x77777777
    for source, target in zip(sources, targets, strict=True):
        moved |= ((words >> source) & 1) << target
    return moved


# Row of 8 and half of 256 that the bytes of a word of steps are for.
_BYTES = [(0, 0), (0, 1), (1, 0), (1, 1)]


def _pack_steps(steps: Tensor) -> Tensor:
    """[N, K / 32] i32 -> [N / 64, K / 256, 128] i32: a word for each thread of a tile of 64 x 256.

    Thread (warp, row of 8, block) owns rows ``warp * 16 + row`` and 8 further, in both halves.
    """
    n, blocks = steps.shape
    # tile, warp, half of 16, bit 2, bits 1 and 0; stage, half of 256, block
    parts = steps.view(n // 64, 4, 2, 2, 4, blocks // 8, 2, 4)
    words = torch.zeros_like(parts[:, :, 0, :, :, :, 0])
    for row, half in _BYTES:
        words |= parts[:, :, row, :, :, :, half] << (16 * half + 8 * row)
    # tile, warp, bit 2, bits 1 and 0, stage, block
    return words.permute(0, 4, 1, 3, 2, 5).reshape(n // 64, blocks // 8, 128)


def _unpack_steps(words: Tensor) -> Tensor:
    """The inverse: [N, K / 32] i32."""
    tiles, stages, _ = words.shape
    parts = words.view(tiles, stages, 4, 4, 2, 4).permute(0, 2, 4, 3, 1, 5)
    spread = [(parts >> (16 * half + 8 * row)) & 255 for row, half in _BYTES]
    rows = [torch.stack(spread[2 * row : 2 * row + 2], dim=-2) for row in range(2)]
    return torch.stack(rows, dim=2).reshape(tiles * 64, stages * 8)
