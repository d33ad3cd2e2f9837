"""A linear weight in the format of the checkpoint, and its dense copy for plain torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from deepinfer.kernels.quant import dequantize_weight

from .k_order import KOrder

# MKL splits columns among threads, and uses another kernel for a narrow remainder.
F32_COLUMN_MULTIPLE = 16


@dataclass(frozen=True, eq=False)
class Weight:
    """[..., N, K] in one of the released formats.

    values [..., N, K] e4m3fn with scales [..., N/32, K/32] e8m0fnu; or values [..., N, K/2] int8
    (E2M1 pairs) with scales [..., N, K/32] e8m0fnu; or values [..., N, K] bf16|f32 and no scales.
    """

    values: Tensor
    scales: Tensor | None = None

    @cached_property
    def dense(self) -> Tensor:
        """[..., N, K] dequantized, bf16 or f32; computed once, on first use."""
        if self.scales is None:
            return self.values
        return dequantize_weight(self.values, self.scales)

    @cached_property
    def padded_f32(self) -> Tensor:
        """[N padded to a multiple of 16, K] f32; computed once, on first use."""
        dense = self.dense.float()
        return functional.pad(dense, (0, 0, 0, -dense.shape[0] % F32_COLUMN_MULTIPLE))

    @cached_property
    def bf16_parts(self) -> Tensor:
        """[3, N, K] bf16 whose sum is the f32 weight: three bf16 GEMMs are as exact as an fp32 one
        if x is bf16."""
        rest, parts = self.dense.float(), []
        for _ in range(3):
            parts.append(rest.to(torch.bfloat16))
            rest = rest - parts[-1].float()
        return torch.stack(parts)

    @cached_property
    def fault(self) -> str | None:
        """Why kernels cannot use this weight, or None; computed once, on first use."""
        values, scales = self.values, self.scales
        plain = (torch.bfloat16, torch.float32)
        packed = (torch.float8_e4m3fn, torch.int8)
        if values.dtype not in (plain if scales is None else packed) or not values.is_contiguous():
            kinds = "bf16 or f32" if scales is None else "e4m3fn or int8 (E2M1 pairs)"
            return f"values: expected contiguous {kinds}, found {_described(values)}"
        if scales is None:
            return None
        *members, n, k = values.shape
        is_fp4 = values.dtype == torch.int8
        wanted = (*members, n if is_fp4 else -(-n // 32), k // 16 if is_fp4 else k // 32)
        fits = scales.shape == wanted and scales.device == values.device
        if scales.dtype != torch.float8_e8m0fnu or not fits or not scales.is_contiguous():
            return (
                f"scales: expected contiguous torch.float8_e8m0fnu {list(wanted)} on "
                f"{values.device}, found {_described(scales)}"
            )
        k = self.shape[-1]
        return None if k % 32 == 0 else f"expected K to be a multiple of 32, found {k}"

    @property
    def shape(self) -> tuple[int, ...]:
        """(..., N, K)."""
        *members, n, width = self.values.shape
        return (*members, n, width * (2 if self.values.dtype == torch.int8 else 1))

    @property
    def num_rows(self) -> int:
        """N."""
        return self.values.shape[-2]

    @property
    def order(self) -> KOrder:
        """The order of K that the portable kernels expect of activations in the FP8 path."""
        return KOrder.SPLIT if self.values.dtype == torch.int8 else KOrder.PLAIN

    def __getitem__(self, expert: int) -> Weight:
        """One [N, K] weight of a stack; its dense copy is cached too."""
        return self._members[expert]

    @cached_property
    def _members(self) -> list[Weight]:
        scales = [None] * len(self.values) if self.scales is None else list(self.scales)
        return [Weight(v, s) for v, s in zip(self.values, scales, strict=True)]

    def split_rows(self, parts: int) -> Weight:
        """[parts, N / parts, K]: consecutive rows as a stack."""
        values, scales = self.values, self.scales
        return Weight(
            values.view(parts, -1, values.shape[-1]),
            None if scales is None else scales.view(parts, -1, scales.shape[-1]),
        )

    @staticmethod
    def concat(weights: Sequence[Weight]) -> Weight:
        """Weights concatenated along N, for linear layers that share their input."""
        scales = [weight.scales for weight in weights if weight.scales is not None]
        return Weight(
            torch.cat([weight.values for weight in weights]), cat_bytes(scales) if scales else None
        )

    @staticmethod
    def stack(weights: Sequence[Weight]) -> Weight:
        """[E, N, K]: stacked weights of E experts."""
        scales = [weight.scales for weight in weights if weight.scales is not None]
        return Weight(
            torch.stack([weight.values for weight in weights]),
            torch.stack([s.view(torch.uint8) for s in scales]).view(torch.float8_e8m0fnu)
            if scales
            else None,
        )


def _described(x: Tensor) -> str:
    return f"{x.dtype} {list(x.shape)} with strides {list(x.stride())} on {x.device}"


def cat_bytes(tensors: Sequence[Tensor]) -> Tensor:
    """``torch.cat`` along the rows for dtypes that it does not support."""
    return torch.cat([t.view(torch.uint8) for t in tensors]).view(tensors[0].dtype)
