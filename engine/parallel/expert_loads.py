"""How many tokens each routed expert got: counted as the engine runs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from deepinfer.engine.model.model import Model
from deepinfer.engine.model.share import RoutedExperts


class CountedExperts:
    """Routed experts that count the tokens of each: ``counts`` [E] i64, on their device."""

    def __init__(self, routed: RoutedExperts, num_experts: int, device: torch.device) -> None:
        self.routed = routed
        self.counts = torch.zeros(num_experts, dtype=torch.int64, device=device)

    def __call__(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        return self.begin(x, ids, weights)()

    def begin(self, x: Tensor, ids: Tensor, weights: Tensor) -> Callable[[], Tensor]:
        flat = ids.flatten()
        self.counts.index_add_(0, flat, torch.ones_like(flat))
        return self.routed.begin(x, ids, weights)

    def assist(self) -> None:
        self.routed.assist()


def count_loads(model: Model) -> list[CountedExperts]:
    """Count from now on, in every backbone layer; layer by layer."""
    counted = []
    for block in model.blocks:
        routed = CountedExperts(block.moe.routed, block.plan.n_routed_experts, model.device)
        block.moe.routed = routed
        counted.append(routed)
    return counted
