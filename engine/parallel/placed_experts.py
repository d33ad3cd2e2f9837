"""The routed experts of one layer, placed by measured load and rebalanced at run time."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepinfer.engine.model.layer_tensors import LayerTensors
from deepinfer.engine.model.schedule import LayerPlan
from deepinfer.engine.model.share import LocalExperts, RoutedExperts, Steps, added_up
from deepinfer.kernels.norm import NormedRows

from .exchange import ExchangedExperts, PresentExperts
from .expert_balance import Placement, plain_placement, rebalance
from .fixed_exchange import FixedCapacityExperts
from .groups import Group
from .peer_exchange import PeerChannel, PeerExperts
from .routing_table import RoutingTable

# Minimum gain that justifies moving experts, which costs reading their weights.
_WORTH_MOVING = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """Imbalance (largest load of a rank over the mean) before and after a rebalance, with the same
    loads, of the worst layer.  ``num_moved`` layers got another placement."""

    before: float
    after: float
    num_moved: int


@dataclass(frozen=True, slots=True)
class Nodes:
    """``inside``: the ranks of this node.  ``across``: the same local rank on each node."""

    inside: Group
    across: Group


class PlacedExperts:
    """Routed experts distributed over ``group``, which counts the tokens of each expert.

    counts [E] i64: tokens of this rank since the last placement.
    ``capacity``: passes of at most this many tokens per rank use the exchange without host waits.
    ``nodes``: set for ranks on several nodes; each token then crosses the network once per node.
    ``channel``: that exchange goes through peer memory.
    """

    def __init__(
        self,
        plan: LayerPlan,
        tensors: LayerTensors,
        limit: float,
        group: Group,
        *,
        num_redundant: int = 0,
        is_exact: bool = True,
        capacity: int = 0,
        nodes: Nodes | None = None,
        channel: PeerChannel | None = None,
    ) -> None:
        self.plan = plan
        self.group = group
        self.counts = torch.zeros(plan.n_routed_experts, dtype=torch.int64, device=tensors.device)
        self._tensors = tensors
        self._limit = limit
        self._is_exact = is_exact
        self._capacity = capacity
        self._most_tokens = sys.maxsize  # not known yet
        self._nodes = nodes
        self._channel = channel
        most = plan.n_routed_experts * (group.size - 1)
        # If there are fewer experts than ranks, as in draft stages, each rank has a replica.
        further = max(min(num_redundant, most), group.size - plan.n_routed_experts)
        self._num_replicas = plan.n_routed_experts + further
        self.placement = self.balanced(np.ones(plan.n_routed_experts))
        self._exchange, self._fixed = self._make_exchanges()

    def __call__(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        return added_up(self.begin(NormedRows(x, x), ids, weights)()(), len(x))

    def begin(self, rows: NormedRows, ids: Tensor, weights: Tensor) -> Steps:
        flat = ids.flatten()
        self.counts.index_add_(0, flat, torch.ones_like(flat))
        return self._form().begin(rows, ids, weights)

    def assist(self) -> None:
        self._form().assist()

    def expect(self, most_tokens: int) -> int | None:
        """Announce, with the same value on all ranks, the maximum tokens per rank of the next pass.

        Returns the size for which a graph of the pass is captured, None if it cannot be a graph.
        """
        self._most_tokens = most_tokens
        if self._fixed is None or most_tokens > self._capacity:
            return None
        # One of a few sizes, so that small passes send little and few graphs are needed.
        size = min(self._capacity, 1 << max(most_tokens - 1, 0).bit_length())
        if self._channel is not None:
            self._channel.most_tokens = size
            return size
        assert isinstance(self._fixed, FixedCapacityExperts)
        self._fixed.capacity = size
        return None

    def balanced(self, loads: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Placement:
        """A placement for loads [E], summed over all ranks."""
        return rebalance(loads[None], num_replicas=self._num_replicas, num_devices=self.group.size)

    def move(self, placement: Placement) -> None:
        """Load the weights that this rank now needs, and route tokens accordingly."""
        self.placement = placement
        self._exchange, self._fixed = self._make_exchanges()

    def _form(self) -> RoutedExperts:
        is_small = self._most_tokens <= self._capacity
        return self._fixed if is_small and self._fixed is not None else self._exchange

    def _make_exchanges(
        self,
    ) -> tuple[ExchangedExperts, FixedCapacityExperts | PeerExperts | None]:
        if self._nodes is not None:
            return self._make_two_levels(self._nodes), None
        table = RoutingTable.of(self.placement, 0, self._tensors.device)
        members = table.members[self.group.rank]
        local = LocalExperts(self._tensors, members, self._limit, self.plan.n_routed_experts)
        common = (PresentExperts(local), table, self.group)
        sizes: dict[str, Any] = {
            "hidden_size": local.down.num_rows,
            "num_choices": self.plan.num_experts_per_tok,
            "is_exact": self._is_exact,
        }
        exchange = ExchangedExperts(*common, **sizes)
        if self._channel is not None:
            return exchange, PeerExperts(local, table, self._channel)
        if self._capacity:
            return exchange, FixedCapacityExperts(*common, **sizes, capacity=self._capacity)
        return exchange, None

    def _make_two_levels(self, nodes: Nodes) -> ExchangedExperts:
        """Over the network to the same local rank of each node with an expert, then inside it.

        Replicas are numbered rank by rank, so those of a node are consecutive.
        """
        device = self._tensors.device
        by_node = replace(self.placement, num_devices=nodes.across.size)
        table = RoutingTable.of(by_node, 0, device)
        num_here = self._num_replicas // nodes.across.size
        inside = RoutingTable.of(plain_placement(1, num_here, nodes.inside.size), 0, device)
        here = table.members[nodes.across.rank]
        members = [here[i] for i in inside.members[nodes.inside.rank]]
        local = LocalExperts(self._tensors, members, self._limit, self.plan.n_routed_experts)
        hidden_size, choices = local.down.num_rows, self.plan.num_experts_per_tok
        inner = ExchangedExperts(
            PresentExperts(local),
            inside,
            nodes.inside,
            hidden_size=hidden_size,
            num_choices=1 if self._is_exact else choices,  # one pair per row
            is_exact=self._is_exact,
        )
        return ExchangedExperts(
            inner,
            table,
            nodes.across,
            hidden_size=hidden_size,
            num_choices=choices,
            is_exact=self._is_exact,
        )


def rebalance_layers(layers: Sequence[PlacedExperts]) -> Balance:
    """Place the experts of all layers by the counts since the last time.

    Called by all ranks at once between two passes.  Answers do not change: every replica computes
    the same, and the exact exchange adds in the order of expert ids.
    """
    sizes = [len(layer.counts) for layer in layers]
    counts = layers[0].group.all_reduce(torch.cat([layer.counts for layer in layers]))
    before, after, num_moved = 1.0, 1.0, 0
    for layer, part in zip(layers, torch.split(counts.cpu(), sizes), strict=True):
        layer.counts.zero_()
        loads = part.numpy().astype(np.float64)
        placement = layer.balanced(loads)
        old = float(layer.placement.imbalance(loads[None])[0])
        new = float(placement.imbalance(loads[None])[0])
        is_better = new < old * (1 - _WORTH_MOVING)
        if is_better:
            layer.move(placement)
            num_moved += 1
        before, after = max(before, old), max(after, new if is_better else old)
    return Balance(before=before, after=after, num_moved=num_moved)
