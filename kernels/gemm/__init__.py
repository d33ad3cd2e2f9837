"""GEMMs of linear layers: weights in FP8, FP4, bf16 or fp32."""

from __future__ import annotations

from .dispatch import fp32_linear as fp32_linear
from .dispatch import fp32_linear_parts as fp32_linear_parts
from .dispatch import grouped_linear as grouped_linear
from .dispatch import grouped_linear_quantized as grouped_linear_quantized
from .dispatch import linear as linear
from .dispatch import native_gate_up as native_gate_up
from .dispatch import native_grouped_weight as native_grouped_weight
from .dispatch import native_weight as native_weight
from .dispatch import quantized_linear as quantized_linear
from .hopper_weights import HopperWeight as HopperWeight
from .hopper_weights import recast_weight as recast_weight
from .weights import Weight as Weight

__all__ = [
    "HopperWeight",
    "Weight",
    "fp32_linear",
    "fp32_linear_parts",
    "grouped_linear",
    "grouped_linear_quantized",
    "linear",
    "native_gate_up",
    "native_grouped_weight",
    "native_weight",
    "quantized_linear",
    "recast_weight",
]
