"""Gate and up projections of the shared expert on NVIDIA SM90, fused with the router's GEMM."""

from __future__ import annotations

from torch import Tensor

from deepinfer.kernels.gemm import HopperWeight, Weight
from deepinfer.kernels.gemm.activations import Activations
from deepinfer.kernels.gemm.gluon_joint_launch import fits_joint, gated_joint_gluon

from .gluon_experts import gated_linear_gluon
from .pages import Pages
from .slots import Slots
from .triton_router import router_parts


def gated_linear_and_logits_gluon(
    x: Tensor,
    operand: Tensor | Activations,
    gate_up: HopperWeight,
    limit: float,
    linear: HopperWeight,
    gate: Weight,
    slots: Slots | Pages,
) -> tuple[Activations, Tensor | None]:
    """As ``gated_linear_and_logits``."""
    parts = router_parts(x)
    if isinstance(operand, Activations) and fits_joint(x, gate_up, gate, parts):
        form = operand, gate_up, linear.order, limit, x, gate, parts
        return gated_joint_gluon(*form, preset=slots.preset)
    return gated_linear_gluon(operand, gate_up, limit, linear), None
