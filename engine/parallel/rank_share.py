"""What one rank computes of each layer: its heads of attention, its experts."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from deepinfer.engine.model.layer_tensors import LayerTensors
from deepinfer.engine.model.schedule import LayerPlan
from deepinfer.engine.model.share import LocalExperts, RoutedExperts

from .exchange import ExchangedExperts, PresentExperts
from .expert_balance import Placement, plain_placement
from .groups import Group
from .routing_table import RoutingTable


class RankShare:
    """``experts`` share routed experts, ``heads`` the heads of attention and the tokens they see.

    ``is_exact`` picks the form of the exchange: see ``exchange``.
    """

    def __init__(self, experts: Group, heads: Group, *, is_exact: bool = True) -> None:
        self.experts = experts
        self.heads = heads
        self.is_exact = is_exact

    @property
    def tensor_rank(self) -> int:
        return self.heads.rank

    @property
    def tensor_size(self) -> int:
        return self.heads.size

    def gather_groups(self, groups: Tensor) -> Tensor:
        if self.heads.size == 1:
            return groups
        return torch.cat(self.heads.all_gather(groups).unbind(), dim=1)

    def routed_experts(self, plan: LayerPlan, tensors: LayerTensors, limit: float) -> RoutedExperts:
        num_experts = plan.n_routed_experts
        if self.experts.size == 1:
            return LocalExperts(tensors, range(num_experts), limit)
        placement = plain_placement(1, num_experts, self.experts.size)
        routed = self.place(placement, 0, plan, tensors, limit)
        return routed if self.heads.size == 1 else SharedTokens(routed, self.heads)

    def place(
        self, placement: Placement, layer: int, plan: LayerPlan, tensors: LayerTensors, limit: float
    ) -> ExchangedExperts:
        """The exchange of one layer whose experts lie as ``placement`` says for ``layer``."""
        table = RoutingTable.of(placement, layer, tensors.device)
        local = LocalExperts(tensors, table.members[self.experts.rank], limit)
        return ExchangedExperts(
            PresentExperts(local),
            table,
            self.experts,
            hidden_size=local.down.num_rows,
            num_choices=plan.num_experts_per_tok,
            is_exact=self.is_exact,
        )


class SharedTokens:
    """Ranks that hold the same tokens send an equal part each, then gather the results."""

    def __init__(self, routed: RoutedExperts, heads: Group) -> None:
        self.routed = routed
        self.heads = heads

    def __call__(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        return self.begin(x, ids, weights)()

    def assist(self) -> None:
        self.routed.assist()

    def begin(self, x: Tensor, ids: Tensor, weights: Tensor) -> Callable[[], Tensor]:
        share = -(-len(x) // self.heads.size)
        part = slice(self.heads.rank * share, (self.heads.rank + 1) * share)
        own = self.routed.begin(x[part], ids[part], weights[part])

        def finish() -> Tensor:
            rows = own()
            padded = rows.new_zeros(share, x.shape[1])
            padded[: len(rows)] = rows
            return self.heads.all_gather(padded).flatten(0, 1)[: len(x)]

        return finish
