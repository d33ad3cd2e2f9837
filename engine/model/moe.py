"""Mixture of experts of one layer: router, routed experts, shared expert."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from deepinfer.kernels.gemm import Weight, quantized_linear
from deepinfer.kernels.moe import experts, route, swiglu

from .layer_tensors import LayerTensors
from .schedule import LayerPlan

if TYPE_CHECKING:
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
        # Absent from checkpoints that were made for text only.
        image_bias = tensors.get("ffn.gate.bias_vl")
        self.image_bias = self.bias if image_bias is None else image_bias
        members = [tensors.under(f"ffn.experts.{e}.") for e in range(plan.n_routed_experts)]
        self.gate_up = Weight.stack([_gate_up(member) for member in members])
        self.down = Weight.stack([member.weight("w2") for member in members])
        shared = tensors.under("ffn.shared_experts.")
        self.shared_gate_up, self.shared_down = _gate_up(shared), shared.weight("w2")

    def __call__(self, x: Tensor, is_image: Tensor | None) -> Tensor:
        """x [T, d] bf16 (normalised) -> [T, d] bf16; is_image [T, 1] bool or None."""
        ids, weights = self.route(x, is_image)
        routed = experts(x, ids, weights, self.gate_up, self.down, self.limit)
        hidden = swiglu(quantized_linear(x, self.shared_gate_up), self.limit)
        return (routed + quantized_linear(hidden, self.shared_down)).to(torch.bfloat16)

    def route(self, x: Tensor, is_image: Tensor | None) -> tuple[Tensor, Tensor]:
        """Expert ids [T, K] i64, ascending, and weights [T, K] f32."""
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
        )


def _gate_up(tensors: LayerTensors) -> Weight:
    return Weight.concat([tensors.weight("w1"), tensors.weight("w3")])
