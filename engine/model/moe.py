"""Mixture of experts (MoE) of one layer: router, routed experts, shared expert."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from deepinfer.kernels.gemm import native_gate_up, native_weight, quantized_linear
from deepinfer.kernels.moe import (
    Pages,
    PairOutputs,
    Slots,
    gated_linear,
    gated_linear_and_logits,
    route,
)
from deepinfer.kernels.norm import NormedRows

from .layer_tensors import LayerTensors
from .schedule import LayerPlan
from .share import LocalExperts, RoutedExperts, Steps, gate_up

if TYPE_CHECKING:
    from deepinfer.kernels.gemm.activations import Activations

    from .config import ModelConfig


class MoE:
    """T tokens, K experts per token."""

    def __init__(self, config: ModelConfig, plan: LayerPlan, tensors: LayerTensors) -> None:
        self.num_experts_per_tok = plan.num_experts_per_tok
        self.normalize = config.norm_topk_prob
        self.scaling_factor = config.routed_scaling_factor
        self.limit = config.swiglu_limit
        self.gate = tensors.weight("ffn.gate")
        self.bias = tensors["ffn.gate.bias"]
        # Absent from text-only checkpoints.
        image_bias = tensors.get("ffn.gate.bias_vl")
        self.image_bias = self.bias if image_bias is None else image_bias
        self.routed: RoutedExperts = tensors.share.routed_experts(plan, tensors, self.limit)
        shared = tensors.under("ffn.shared_experts.")
        self.shared_gate_up = native_gate_up(gate_up(shared))
        self.shared_down = native_weight(shared.weight("w2"))

    def __call__(self, rows: NormedRows, is_image: Tensor | None) -> Tensor | PairOutputs:
        """rows [T, d] -> [T, d] bf16; on a GPU the final sum may be left to the next kernel.
        is_image [T, 1] bool or None."""
        compute, activated = self._begin(rows, is_image)
        collect = compute()
        shared = quantized_linear(activated, self.shared_down)
        routed = collect()
        if isinstance(routed, Tensor):
            return torch.add(routed, shared, out=torch.empty_like(shared))
        return PairOutputs(*routed, shared)

    def _begin(
        self, rows: NormedRows, is_image: Tensor | None
    ) -> tuple[Steps, Tensor | Activations]:
        """The remaining steps of the routed experts, and the shared expert's activations."""
        x = rows.values
        shared = (rows.operand, self.shared_gate_up, self.limit, self.shared_down)
        if not (x.is_cuda and len(x) and isinstance(self.routed, LocalExperts)):
            # Send tokens to other ranks before computing anything.
            return self.routed.begin(rows, *self.route(x, is_image)), gated_linear(*shared)
        slots = self.routed.slots(x, self.num_experts_per_tok)
        activated, logits = gated_linear_and_logits(x, *shared, self.gate, slots)
        ids, weights = self.route(x, is_image, slots, logits)
        return self.routed.begin(rows, ids, weights, slots), activated

    def route(
        self,
        x: Tensor,
        is_image: Tensor | None,
        slots: Slots | Pages | None = None,
        logits: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Expert ids [T, K] i64, ascending, and weights [T, K] f32.  On a GPU this can fill
        ``slots`` and take ``logits`` that were computed already."""
        bias = self.bias
        if is_image is not None:
            bias = torch.where(is_image, self.image_bias, self.bias)
        return route(
            x,
            self.gate,
            bias,
            num_experts_per_tok=self.num_experts_per_tok,
            normalize=self.normalize,
            scaling_factor=self.scaling_factor,
            slots=slots,
            logits=logits,
        )
