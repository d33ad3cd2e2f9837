"""Mixture of experts: router, routed experts, SwiGLU."""

from __future__ import annotations

from .dispatch import expert_pairs as expert_pairs
from .dispatch import experts as experts
from .dispatch import gated_linear as gated_linear
from .dispatch import gated_linear_and_logits as gated_linear_and_logits
from .dispatch import native_experts as native_experts
from .dispatch import route as route
from .dispatch import send_back_experts as send_back_experts
from .dispatch import slots_for as slots_for
from .dispatch import sum_rows as sum_rows
from .dispatch import swiglu as swiglu
from .pages import Pages as Pages
from .pair_outputs import PairOutputs as PairOutputs
from .slots import Slots as Slots

__all__ = [
    "Pages",
    "PairOutputs",
    "Slots",
    "expert_pairs",
    "experts",
    "gated_linear",
    "gated_linear_and_logits",
    "native_experts",
    "route",
    "send_back_experts",
    "slots_for",
    "sum_rows",
    "swiglu",
]
