"""Mixture of experts: router, routed experts, SwiGLU."""

from __future__ import annotations

from .dispatch import can_split as can_split
from .dispatch import expert_pairs as expert_pairs
from .dispatch import expert_parts as expert_parts
from .dispatch import experts as experts
from .dispatch import gated_linear as gated_linear
from .dispatch import native_experts as native_experts
from .dispatch import route as route
from .dispatch import sum_rows as sum_rows
from .dispatch import swiglu as swiglu
from .pair_outputs import PairOutputs as PairOutputs

__all__ = [
    "PairOutputs",
    "can_split",
    "expert_pairs",
    "expert_parts",
    "experts",
    "gated_linear",
    "native_experts",
    "route",
    "sum_rows",
    "swiglu",
]
