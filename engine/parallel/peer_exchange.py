"""The exchange between GPUs of one host by writing into each other's memory: no host and no copies
in between, any of it part of a graph.

What is sent goes through a stream of its own, before what computes: tokens while the shared expert
begins, most columns of the results while experts compute the others, and those while it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from deepinfer.engine.model.share import Outputs, Steps, added_up
from deepinfer.errors import EngineError
from deepinfer.kernels.exchange import (
    Arrivals,
    ExchangeLayout,
    end_round,
    receive_tokens,
    send_results,
    send_tokens,
)
from deepinfer.kernels.gemm.expert_rows import ExpertRows

from .groups import Group
from .peer_memory import PeerMemory
from .routing_table import RoutingTable


class ArrivalExperts(Protocol):
    """Experts of this rank for tokens of all ranks: see ``engine.model.share.LocalExperts``."""

    def parts(self, num_tokens: int) -> Sequence[range]: ...

    def arrived(
        self, x: Arrivals, places: Tensor, weights: Tensor, parts: Sequence[range]
    ) -> Iterator[tuple[Tensor, ExpertRows]]: ...


class PeerChannel:
    """The buffers of one exchange at a time between the ranks of a host; layers take turns.

    ``most_tokens`` is how many tokens any rank brings to the exchanges that follow, the same on all
    ranks.  ``rounds`` [1] i32: exchanges ended so far.  All ranks make the same ones in the same
    order, and end each before the next.
    """

    def __init__(self, group: Group, layout: ExchangeLayout, device: torch.device) -> None:
        """Made by all ranks of ``group`` at once.  Raises: EngineError as ``PeerMemory``."""
        self.layout = layout
        self.memory = PeerMemory(group, layout.num_bytes, device)
        self.rounds = torch.zeros(1, dtype=torch.int32, device=device)
        self.to_all = (layout, self.memory.addresses, group.rank, self.rounds)
        self.here = (layout, self.memory.own, self.rounds)
        self.most_tokens = layout.capacity
        # Its few programs are there first, so that the others fill what they leave.
        self.stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]


class PeerExperts:
    """The routed experts of one layer, as ``FixedCapacityExperts``, over a host's channel.

    Raises: EngineError for more tokens than there is room for, before anything is sent.
    """

    def __init__(self, local: ArrivalExperts, table: RoutingTable, channel: PeerChannel) -> None:
        self.local = local
        self.table = table
        self.channel = channel

    def __call__(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        return added_up(self.begin(x, ids, weights)()(), len(x))

    def assist(self) -> None:
        layout, device = self.channel.layout, self.table.rank.device
        x = torch.empty(0, layout.hidden_size, dtype=torch.bfloat16, device=device)
        ids = torch.empty(0, layout.num_choices, dtype=torch.int64, device=device)
        self.begin(x, ids, ids.float())()()

    def begin(self, x: Tensor, ids: Tensor, weights: Tensor) -> Steps:
        """Send the tokens; the last step gives rows of what other ranks sent back, which hold until
        the next exchange begins."""
        channel = self.channel
        most = channel.most_tokens
        if len(x) > most:
            raise EngineError(
                f"{len(x)} tokens in a step, but the exchange has room for {most} per rank: raise "
                "its capacity or lower max_num_seqs"
            )
        # What was allocated on a stream is used again only after it has waited for the other one.
        channel.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(channel.stream):
            replicas = (self.table.rank, self.table.place, self.table.count)
            result_row = send_tokens(*channel.to_all, x, ids, weights, replicas, most)
        return lambda: self._compute(result_row, most)

    def _compute(self, result_row: Tensor, most: int) -> Callable[[], Outputs]:
        """Results of the first columns are on their way while the others are computed."""
        channel, main = self.channel, torch.cuda.current_stream()
        arrivals = Arrivals(channel.layout, channel.memory.own, most)
        received = receive_tokens(*channel.here, most)
        parts = self.local.parts(most)
        kept = []  # until all of it was used: on the other stream, too
        for part, results in enumerate(self.local.arrived(arrivals, *received, parts)):
            channel.stream.wait_stream(main)
            with torch.cuda.stream(channel.stream):
                send_results(*channel.to_all, *results, most, part, parts[part].start)
            kept.append(results)

        def collect() -> Outputs:
            end_round(*channel.here, most, len(parts))
            main.wait_stream(channel.stream)
            kept.clear()
            return channel.layout.results_of(channel.memory.own), result_row

        return collect
