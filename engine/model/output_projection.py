"""Attention's output projection: two linear layers, the first one grouped by heads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from deepinfer.kernels.gemm import (
    HopperWeight,
    grouped_linear,
    grouped_linear_quantized,
    native_grouped_weight,
    native_weight,
    quantized_linear,
)

from .layer_tensors import LayerTensors

if TYPE_CHECKING:
    from deepinfer.kernels.gemm.activations import Activations

    from .config import ModelConfig


class OutputProjection:
    """o_a has one weight per group of heads; o_b combines all groups.

    o_a takes bf16 inputs, as the official model does, or quantizes them to FP8
    (``EngineConfig.output_projection``).
    """

    def __init__(self, config: ModelConfig, tensors: LayerTensors) -> None:
        share = tensors.share
        self.gather_groups = share.gather_groups if share.tensor_size > 1 else None
        self.fp8 = tensors.output_as_fp8
        wo_a = tensors.weight("attn.wo_a").split_rows(share.tensor_size)[share.tensor_rank]
        self.groups = config.o_groups // share.tensor_size
        self.wo_a = native_grouped_weight(wo_a.split_rows(self.groups), fp8=self.fp8)
        self.wo_b = native_weight(tensors.weight("attn.wo_b"))

    @property
    def takes_quantized(self) -> bool:
        """Whether attention should quantize its output."""
        return isinstance(self.wo_a, HopperWeight)

    def __call__(self, heads: Tensor | Activations) -> Tensor:
        """[T, H, D] of this rank's heads -> [T, d] bf16."""
        groups = heads
        if isinstance(heads, Tensor):
            groups = torch.unflatten(heads.flatten(1), -1, (self.groups, -1))
        if self.gather_groups is None:
            both = grouped_linear_quantized(groups, self.wo_a, self.wo_b, fp8=self.fp8)
            return quantized_linear(both, self.wo_b)
        gathered = self.gather_groups(grouped_linear(groups, self.wo_a, fp8=self.fp8))
        return quantized_linear(gathered.flatten(1), self.wo_b)
