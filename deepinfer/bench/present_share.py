"""Several present ranks of a larger deployment whose other ranks are absent.

P present ranks of N exchange tokens as in the engine.  Each absent rank is simulated as sending as
many synthetic tokens as a present one and returning a result for each token sent to it: a present
rank does all the work that it would do in the whole deployment, but bytes for absent ranks cross no
link.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from deepinfer.engine.execution.turns import Turn
from deepinfer.engine.model.layer_tensors import LayerTensors
from deepinfer.engine.model.schedule import LayerPlan
from deepinfer.engine.model.share import LocalExperts, RoutedExperts
from deepinfer.engine.parallel.exchange import PresentExperts
from deepinfer.engine.parallel.fixed_exchange import FixedCapacityExperts
from deepinfer.engine.parallel.groups import Group
from deepinfer.engine.parallel.peer_exchange import PeerChannel, PeerExperts
from deepinfer.engine.parallel.routing_table import RoutingTable
from deepinfer.kernels.exchange import Buffers, ExchangeLayout, token_block

from .arrived import fill_tokens
from .plan import padded_experts

# The round counter of absent ranks, larger than any real round: they never keep others waiting.
_ALWAYS = 1 << 30


class PresentShare:
    """A present rank's ``Share``: all of attention, and its part of the routed experts.

    ``group``: the present ranks, which are the first of ``ranks``; ``capacity``: maximum tokens per
    rank and pass.  On GPUs the exchange goes through peer memory, on a CPU through gloo.
    """

    tensor_rank = 0
    tensor_size = 1

    def __init__(self, ranks: int, group: Group, capacity: int) -> None:
        self.ranks = ranks
        self.group = group
        self.capacity = capacity
        self._fixed: list[FixedCapacityExperts] = []
        self._channels: dict[int, PeerChannel] = {}

    def has_layer(self, plan: LayerPlan) -> bool:
        return True

    def gather_groups(self, groups: Tensor) -> Tensor:
        return groups

    def routed_experts(self, plan: LayerPlan, tensors: LayerTensors, limit: float) -> RoutedExperts:
        table = even_table(plan.n_routed_experts, self.ranks, tensors.device)
        members = table.members[self.group.rank]
        local = LocalExperts(tensors, members, limit, plan.n_routed_experts)
        width, choices = local.down.num_rows, plan.num_experts_per_tok
        if tensors.device.type == "cpu":
            self._fixed.append(
                FixedCapacityExperts(
                    PresentExperts(local), table, EchoGroup(self.group, self.ranks),
                    hidden_size=width, num_choices=choices, capacity=self.capacity, is_exact=False,
                )
            )  # fmt: skip
            return self._fixed[-1]
        if choices not in self._channels:
            layout = ExchangeLayout(
                num_ranks=self.ranks, capacity=self.capacity, num_choices=choices,
                hidden_size=width, block=token_block(tensors.device),
            )  # fmt: skip
            channel = PartChannel(self.group, layout, tensors.device, plan.n_routed_experts)
            self._channels[choices] = channel
        return PeerExperts(local, table, self._channels[choices])

    def before_pass(self, number: int, most_tokens: int) -> Turn:
        """Announce the maximum number of tokens per rank in the next pass."""
        for fixed in self._fixed:
            fixed.capacity = most_tokens
        for channel in self._channels.values():
            channel.most_tokens = most_tokens
        return Turn(most_tokens if self._channels else None)


def even_table(num_experts: int, ranks: int, device: torch.device) -> RoutingTable:
    """Consecutive experts per rank; the last ranks may repeat the last expert."""
    held = padded_experts(num_experts, ranks)
    experts = torch.arange(num_experts, device=device)[:, None]
    return RoutingTable(
        rank=experts // held,
        place=experts % held,
        count=torch.ones(num_experts, dtype=torch.int64, device=device),
        members=tuple(
            tuple(min(rank * held + place, num_experts - 1) for place in range(held))
            for rank in range(ranks)
        ),
    )


class EchoGroup(Group):
    """A group of ``ranks`` of which the first are ``present``: data sent to an absent rank is
    returned as if that rank had sent it."""

    def __init__(self, present: Group, ranks: int) -> None:
        super().__init__(range(ranks), present.rank, present.handle)
        self._present = present

    def all_to_all(
        self, rows: Tensor, send: Sequence[int] | None, receive: Sequence[int] | None
    ) -> Callable[[], Tensor]:
        assert send is None and receive is None, "parts are equal"
        ends = len(rows) // self.size * self._present.size
        arriving = self._present.all_to_all(rows[:ends], None, None)
        return lambda: torch.cat([arriving(), rows[ends:]])


class PartChannel(PeerChannel):
    """A channel of all ranks of ``layout`` between the present ones of ``group``.

    Data for absent ranks is written to memory of this GPU that nothing reads.  Their tokens are in
    this rank's buffer from the start, with expert choices among all ``num_experts``.
    """

    def __init__(
        self, group: Group, layout: ExchangeLayout, device: torch.device, num_experts: int
    ) -> None:
        super().__init__(group, layout, device)
        absent = layout.num_ranks - group.size
        if not absent:
            return
        self._nowhere = torch.empty(layout.num_bytes, dtype=torch.uint8, device=device)
        nowhere = self.memory.addresses.new_full((absent,), self._nowhere.data_ptr())
        homes = torch.cat([self.buffers.homes, nowhere + layout.results])
        self.buffers = replace(self.buffers, homes=homes)
        write_arrivals(self.buffers, group.size, num_experts)


def write_arrivals(buffers: Buffers, present: int, num_experts: int) -> None:
    """Write the tokens of the absent ranks, from ``present`` on, into a rank's buffer, and set
    their round counters."""
    layout, own = buffers.layout, buffers.own
    choices, held = layout.num_choices, padded_experts(num_experts, layout.num_ranks)
    first = -(-layout.hidden_size // layout.block // 4)  # word of the owners
    for rank in range(present, layout.num_ranks):
        fill_tokens(buffers, rank)
        heads = own[buffers.heads_of(rank)].view(layout.capacity, -1)
        chances = torch.rand(layout.capacity, num_experts, device=own.device)
        experts = chances.topk(choices).indices.sort(-1).values
        owners = (experts // held << 16) + experts % held
        heads.view(torch.int32)[:, first : first + choices] = owners.int()
        heads.view(torch.float32)[:, first + choices : first + 2 * choices] = 1 / choices
    buffers.sent[present:] = _ALWAYS
    buffers.returned[present:] = _ALWAYS
