"""Access to one layer's tensors by their official names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from deepinfer.errors import CheckpointError
from deepinfer.kernels.gemm import Weight

from .share import WHOLE_MODEL, Share


@dataclass(frozen=True, slots=True)
class LayerTensors:
    """The tensors of a checkpoint whose names begin with ``prefix``, moved to ``device``.

    ``share``: the part of each layer that this rank computes; ``experts_as_fp8``: store the FP4
    weights of routed experts as FP8 (``native_experts``); ``output_as_fp8``: quantize the inputs of
    ``OutputProjection``.
    """

    tensors: Mapping[str, Tensor]
    prefix: str
    device: torch.device
    share: Share = WHOLE_MODEL
    experts_as_fp8: bool = False
    output_as_fp8: bool = False

    def __getitem__(self, name: str) -> Tensor:
        return self.stored(name).to(self.device)

    def stored(self, name: str) -> Tensor:
        """The tensor ``name`` without moving it."""
        full_name = self.prefix + name
        if full_name not in self.tensors:
            raise CheckpointError(f"tensor {full_name} is missing from the checkpoint")
        return self.tensors[full_name]

    def get(self, name: str) -> Tensor | None:
        """The tensor ``name``, or None if the checkpoint has none."""
        return self[name] if self.prefix + name in self.tensors else None

    def weight(self, name: str) -> Weight:
        """The linear weight ``name``, with its scales if it has any."""
        return Weight(self[f"{name}.weight"], self.get(f"{name}.scale"))

    def under(self, prefix: str) -> LayerTensors:
        return replace(self, prefix=self.prefix + prefix)
