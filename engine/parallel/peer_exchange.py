"""The exchange between GPUs of one host by writing into each other's memory: a launch to send, a
launch to receive, no host and no copies in between, any of it part of a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from deepinfer.errors import EngineError
from deepinfer.kernels.exchange import (
    ExchangeLayout,
    receive_results,
    receive_tokens,
    send_results,
    send_tokens,
)

from .peer_memory import PeerMemory
from .routing_table import RoutingTable


class PairExperts(Protocol):
    """Experts that give every choice's row by itself: see ``kernels.moe.expert_pairs``."""

    def pairs(self, x: Tensor, ids: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]: ...


class PeerChannel:
    """Buffers of one exchange at a time between the ranks of a host; layers take turns.

    ``round_number`` [1] i32: exchanges begun so far.  All ranks begin the same ones in the same
    order, and end each before the next.  ``most_tokens`` is how many tokens any of
    them brings to the exchanges that follow, the same on all ranks.
    """

    def __init__(self, layout: ExchangeLayout, memory: PeerMemory, rank: int) -> None:
        self.layout = layout
        self.memory = memory
        self.rank = rank
        self.round_number = torch.zeros(1, dtype=torch.int32, device=memory.own.device)
        self.most_tokens = layout.capacity
        self._stream = torch.cuda.Stream(memory.own.device)  # type: ignore[no-untyped-call]

    def begin(
        self, x: Tensor, ids: Tensor, weights: Tensor, table: RoutingTable
    ) -> Callable[[PairExperts], Tensor]:
        """Send tokens as in ``RoutedExperts``, on a stream beside what follows; the result runs the
        local experts on what arrives and gives [T, d] f32."""
        to_all = (self.layout, self.memory.addresses, self.rank, self.round_number)
        here = (self.layout, self.memory.own, self.round_number)
        replicas = (table.rank, table.place, table.count)
        most = self.most_tokens
        # What was allocated on this stream is used again only after it has waited for the main one.
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            self.round_number += 1
            ranks = send_tokens(*to_all, x, ids, weights, replicas, most)
            arrivals = receive_tokens(*here, most)

        def finish(local: PairExperts) -> Tensor:
            torch.cuda.current_stream().wait_stream(self._stream)
            send_results(*to_all, *local.pairs(*arrivals))
            return receive_results(*here, ranks)

        return finish


class PeerExperts:
    """The routed experts of one layer, as ``FixedCapacityExperts``, over a channel.

    Raises: EngineError for more tokens than the channel has room for, before anything is sent.
    """

    def __init__(self, local: PairExperts, table: RoutingTable, channel: PeerChannel) -> None:
        self.local = local
        self.table = table
        self.channel = channel

    def __call__(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        return self.begin(x, ids, weights)()

    def begin(self, x: Tensor, ids: Tensor, weights: Tensor) -> Callable[[], Tensor]:
        capacity = self.channel.most_tokens
        if len(x) > capacity:
            raise EngineError(
                f"{len(x)} tokens in a step, but the exchange has room for {capacity} per rank: "
                "raise its capacity or lower max_num_seqs"
            )
        finish = self.channel.begin(x, ids, weights, self.table)
        return lambda: finish(self.local)

    def assist(self) -> None:
        layout, device = self.channel.layout, self.table.rank.device
        x = torch.empty(0, layout.hidden_size, dtype=torch.bfloat16, device=device)
        ids = torch.empty(0, layout.num_choices, dtype=torch.int64, device=device)
        self(x, ids, ids.float())
