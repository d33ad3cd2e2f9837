"""The part of each layer that one rank computes: its attention heads and experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from deepinfer.engine.model.layer_tensors import LayerTensors
from deepinfer.engine.model.schedule import LayerPlan
from deepinfer.engine.model.share import LocalExperts, RoutedExperts, Steps, added_up
from deepinfer.kernels.exchange import ExchangeLayout, token_block
from deepinfer.kernels.norm import NormedRows

from .groups import Group
from .peer_exchange import PeerChannel
from .placed_experts import Nodes, PlacedExperts

Half = Literal["encoder", "decoder"]


class RankShare:
    """experts           expert-parallel group
    heads             tensor-parallel group, whose ranks have the same tokens
    num_redundant     redundant expert replicas per layer
    is_exact          exact or reduced combine: see ``exchange``
    capacity          tokens per rank of the exchange without host synchronization; 0: do not use it
    uses_peer_memory  that exchange goes through peer memory
    nodes             distribution of ranks over nodes; None for one node
    half              which half of the layers this rank of a pipeline has
    layers            the ``PlacedExperts`` created so far
    """

    def __init__(
        self,
        experts: Group,
        heads: Group,
        *,
        num_redundant: int = 0,
        is_exact: bool = True,
        capacity: int = 0,
        uses_peer_memory: bool = False,
        nodes: Nodes | None = None,
        half: Half | None = None,
    ) -> None:
        self.experts = experts
        self.heads = heads
        self.num_redundant = num_redundant
        self.is_exact = is_exact
        self.capacity = capacity
        self.uses_peer_memory = uses_peer_memory and capacity > 0 and nodes is None
        self.nodes = nodes
        self.half = half
        self.layers: list[PlacedExperts] = []
        self._channels: dict[tuple[int, int], PeerChannel] = {}

    def has_layer(self, plan: LayerPlan) -> bool:
        return self.half is None or plan.is_decoder == (self.half == "decoder")

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
        if self.experts.size == 1:
            return LocalExperts(tensors, range(plan.n_routed_experts), limit, plan.n_routed_experts)
        routed = PlacedExperts(
            plan,
            tensors,
            limit,
            self.experts,
            num_redundant=self.num_redundant,
            is_exact=self.is_exact,
            capacity=self.capacity,
            nodes=self.nodes,
            channel=self._peer_channel(plan, tensors) if self.uses_peer_memory else None,
        )
        self.layers.append(routed)
        return routed if self.heads.size == 1 else SharedTokens(routed, self.heads)

    def _peer_channel(self, plan: LayerPlan, tensors: LayerTensors) -> PeerChannel | None:
        """The channel shared by all layers with the same sizes."""
        hidden_size, choices = len(tensors.stored("ffn_norm.weight")), plan.num_experts_per_tok
        if hidden_size % ExchangeLayout.WIDTH_MULTIPLE:
            return None
        if (hidden_size, choices) not in self._channels:
            layout = ExchangeLayout(
                num_ranks=self.experts.size,
                capacity=self.capacity,
                num_choices=choices,
                hidden_size=hidden_size,
                block=token_block(tensors.device),
            )
            made = PeerChannel(self.experts, layout, tensors.device)
            self._channels[hidden_size, choices] = made
        return self._channels[hidden_size, choices]


class SharedTokens:
    """Ranks with the same tokens each dispatch an equal part, then gather the results."""

    def __init__(self, routed: RoutedExperts, heads: Group) -> None:
        self.routed = routed
        self.heads = heads

    def __call__(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        return added_up(self.begin(NormedRows(x, x), ids, weights)()(), len(x))

    def assist(self) -> None:
        self.routed.assist()

    def begin(self, rows: NormedRows, ids: Tensor, weights: Tensor) -> Steps:
        x = rows.values
        share = -(-len(x) // self.heads.size)
        part = slice(self.heads.rank * share, (self.heads.rank + 1) * share)
        own = self.routed.begin(rows.at(part), ids[part], weights[part])

        def compute() -> Callable[[], Tensor]:
            collect = own()

            def gather() -> Tensor:
                found = added_up(collect(), len(x[part]))
                padded = found.new_zeros(share, x.shape[1])
                padded[: len(found)] = found
                return self.heads.all_gather(padded).flatten(0, 1)[: len(x)]

            return gather

        return compute
