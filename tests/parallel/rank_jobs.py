"""Jobs that the ranks of the pool run together.  Results are plain values or tensors as lists."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from deepinfer.engine.model.share import RoutedExperts, Steps, only
from deepinfer.engine.parallel.exchange import ExchangedExperts, PresentExperts
from deepinfer.engine.parallel.expert_balance import Placement, plain_placement, rebalance
from deepinfer.engine.parallel.fixed_exchange import FixedCapacityExperts
from deepinfer.engine.parallel.groups import Group
from deepinfer.engine.parallel.routing_table import RoutingTable
from deepinfer.errors import EngineError
from deepinfer.kernels.gemm import Weight
from deepinfer.kernels.moe import experts
from deepinfer.kernels.norm import NormedRows

LINKS: dict[int, Connection] = {}  # to each other rank of the pool
EXPERTS, CHOSEN, HIDDEN, INNER, LIMIT = 8, 3, 64, 32, 10.0


@cache
def groups_of(size: int) -> Group:
    """This rank's group when all ranks stand in consecutive groups of ``size``."""
    everyone = range(dist.get_world_size())
    return Group.split([everyone[i : i + size] for i in range(0, len(everyone), size)])


@cache
def groups_across(size: int) -> Group:
    """This rank's group of those that have the same place in consecutive groups of ``size``."""
    everyone = range(dist.get_world_size())
    return Group.split([everyone[i::size] for i in range(size)])


@cache
def all_experts() -> tuple[Weight, Weight]:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return (torch.randn(shape, generator=generator) / 4).bfloat16()

    return Weight(normal(EXPERTS, 2 * INNER, HIDDEN)), Weight(normal(EXPERTS, HIDDEN, INNER))


class SomeExperts:
    """The given experts of ``all_experts``."""

    def __init__(self, members: Sequence[int]) -> None:
        gate_up, down = all_experts()
        self.gate_up = Weight(gate_up.values[list(members)])
        self.down = Weight(down.values[list(members)])

    def __call__(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        return experts(x, ids, weights, self.gate_up, self.down, LIMIT)

    def begin(self, rows: NormedRows, ids: Tensor, weights: Tensor) -> Steps:
        return only(lambda: self(rows.values, ids, weights))

    def assist(self) -> None:
        pass


def tokens_of(rank: int, count: int, route: str) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens with their choices: anywhere, all of one expert first, or the lowest experts only."""
    generator = torch.Generator().manual_seed(100 + rank)
    x = torch.randn(count, HIDDEN, generator=generator).bfloat16()
    order = torch.rand(count, EXPERTS, generator=generator).argsort(-1)[:, :CHOSEN]
    if route == "one":
        order = torch.arange(CHOSEN).expand(count, CHOSEN)
    return x, order.sort(-1).values, torch.rand(count, CHOSEN, generator=generator)


def placement_for(size: int, num_redundant: int) -> Placement:
    if not num_redundant:
        return plain_placement(1, EXPERTS, size)
    loads = np.arange(EXPERTS)[None] + 1
    return rebalance(loads, num_replicas=EXPERTS + num_redundant, num_devices=size)


def exchange(
    size: int, counts: Sequence[int], form: str, route: str, num_redundant: int
) -> tuple[bool, float]:
    """One exchange in groups of ``size``; is it what one rank computes, and how far is it?"""
    group = groups_of(size)
    table = RoutingTable.of(placement_for(size, num_redundant), 0)
    local = PresentExperts(SomeExperts(table.members[group.rank]))
    sizes = {"hidden_size": HIDDEN, "num_choices": CHOSEN}
    is_exact = not form.endswith("reduced")
    routed: RoutedExperts
    if form.startswith("fixed"):
        capacity = max(counts)
        routed = FixedCapacityExperts(
            local, table, group, capacity=capacity, is_exact=is_exact, **sizes
        )
    else:
        routed = ExchangedExperts(local, table, group, is_exact=is_exact, **sizes)
    rank = dist.get_rank()
    if not counts[rank]:
        routed.assist()
        return True, 0.0
    return _compare(routed, rank, counts[rank], route)


def exchange_two_levels(counts: Sequence[int], form: str, route: str) -> tuple[bool, float]:
    """2 nodes x 2 ranks: over the network to the same place of the node, then inside it."""
    inside, across = groups_of(2), groups_across(2)
    node = RoutingTable.of(plain_placement(1, EXPERTS, 2), 0)
    rank = RoutingTable.of(plain_placement(1, EXPERTS // 2, 2), 0)
    first = node.members[across.rank][rank.members[inside.rank][0]]
    local = PresentExperts(SomeExperts(range(first, first + EXPERTS // 4)))
    is_exact = form == "exact"
    inner_choices = 1 if is_exact else CHOSEN
    sizes = {"hidden_size": HIDDEN, "is_exact": is_exact}
    inner = ExchangedExperts(local, rank, inside, num_choices=inner_choices, **sizes)
    outer = ExchangedExperts(inner, node, across, num_choices=CHOSEN, **sizes)
    return _compare(outer, dist.get_rank(), counts[dist.get_rank()], route)


def too_many_tokens() -> str:
    table = RoutingTable.of(plain_placement(1, EXPERTS, 2), 0)
    routed = FixedCapacityExperts(
        PresentExperts(SomeExperts(table.members[groups_of(2).rank])),
        table,
        groups_of(2),
        hidden_size=HIDDEN,
        num_choices=CHOSEN,
        capacity=4,
    )
    try:
        routed(*tokens_of(dist.get_rank(), 5, "any"))
    except EngineError as error:
        return str(error)
    return "accepted"


def _compare(routed: RoutedExperts, rank: int, count: int, route: str) -> tuple[bool, float]:
    x, ids, weights = tokens_of(rank, count, route)
    expected = SomeExperts(range(EXPERTS))(x, ids, weights)
    got = routed(x, ids, weights)
    assert got.shape == expected.shape and got.dtype == torch.float32
    error = (got - expected).abs().max() / expected.abs().max() if count else torch.zeros(())
    return torch.equal(got, expected), float(error)


def answers(*arguments: Any) -> dict[str, tuple[int, ...]]:
    from golden_ranks import many_ranks

    return many_ranks(*arguments)


def answers_with_shared_heads(*arguments: Any) -> dict[str, tuple[int, ...]]:
    from golden_ranks import heads_on_ranks

    return heads_on_ranks(*arguments)


def answers_of_a_pipeline(*arguments: Any) -> dict[str, tuple[int, ...]]:
    from golden_ranks import layers_on_ranks

    return layers_on_ranks(*arguments)


def rings_of_a_pipeline(*arguments: Any) -> bool:
    from golden_ranks import moved_rings

    return moved_rings(*arguments)


def answers_of_two_roles(*arguments: Any) -> dict[str, tuple[int, ...]]:
    from golden_ranks import two_roles

    return two_roles(*arguments)


def answers_with_moving_experts(*arguments: Any) -> tuple[dict[str, tuple[int, ...]], int]:
    from golden_ranks import moving_experts

    return moving_experts(*arguments)


def planned_blocks(*arguments: Any) -> int:
    from golden_ranks import planned

    return planned(*arguments)
