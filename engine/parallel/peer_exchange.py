"""The exchange between GPUs of one host by writing into each other's memory: a launch to send, a
launch to receive, no host and no copies in between, any of it part of a graph.

It runs on a stream of its own: tokens travel while the shared expert computes.  A large pass goes
in two halves; then the results of the first travel while the experts compute the second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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

from .groups import Group
from .peer_memory import PeerMemory
from .routing_table import RoutingTable


class PairExperts(Protocol):
    """Experts that give every choice's row by itself: see ``kernels.moe.expert_pairs``."""

    def pairs(self, x: Tensor, ids: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True, slots=True, eq=False)
class Begun:
    """An exchange whose tokens are on their way: what arrives (x, places, weights), when that is
    there, and the rank of each choice that was sent."""

    arrivals: tuple[Tensor, Tensor, Tensor]
    is_there: torch.cuda.Event
    ranks: Tensor


class PeerChannel:
    """Buffers of one exchange at a time between the ranks of a host; layers take turns.

    ``round_number`` [1] i32: exchanges begun so far.  All ranks begin the same ones in the same
    order, and end each before the next.
    """

    def __init__(self, group: Group, layout: ExchangeLayout, device: torch.device) -> None:
        """Made by all ranks of ``group`` at once.  Raises: EngineError as ``PeerMemory``."""
        self.layout = layout
        self.memory = PeerMemory(group, layout.num_bytes, device)
        self.round_number = torch.zeros(1, dtype=torch.int32, device=device)
        self.to_all = (layout, self.memory.addresses, group.rank, self.round_number)
        self.here = (layout, self.memory.own, self.round_number)

    def begin(
        self, x: Tensor, ids: Tensor, weights: Tensor, table: RoutingTable, most_tokens: int
    ) -> Begun:
        """Send tokens and receive those of the others, on the present stream; ``most_tokens`` of
        any rank, the same number on all."""
        self.round_number += 1
        replicas = (table.rank, table.place, table.count)
        ranks = send_tokens(*self.to_all, x, ids, weights, replicas, most_tokens)
        arrivals = receive_tokens(*self.here, most_tokens)
        is_there = torch.cuda.Event()  # type: ignore[no-untyped-call]
        is_there.record()
        return Begun(arrivals, is_there, ranks)

    def combine(self, begun: Begun, outputs: Tensor, row_of_pair: Tensor) -> Tensor:
        """Send results back and add up those that return, [T, d] f32; on the present stream."""
        send_results(*self.to_all, outputs, row_of_pair)
        return receive_results(*self.here, begun.ranks)


class PeerChannels:
    """A channel for whole passes, a smaller one for second halves, and their stream.

    ``most_tokens`` is how many tokens any rank brings to the exchanges that follow, the same on all
    ranks; from ``halved_from`` on they go in two halves.
    """

    def __init__(
        self, group: Group, layout: ExchangeLayout, device: torch.device, halved_from: int
    ) -> None:
        half = replace(layout, capacity=-(-layout.capacity // 2))
        self.channels = [PeerChannel(group, layout, device)]
        if halved_from <= layout.capacity:
            self.channels.append(PeerChannel(group, half, device))
        self.layout = layout
        self.most_tokens = layout.capacity
        self.halved_from = halved_from
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def parts(self) -> list[tuple[PeerChannel, slice, int]]:
        """The channels that a pass goes through, the tokens of each, and the most of any rank."""
        halves = 1 if self.most_tokens < self.halved_from else 2
        most = -(-self.most_tokens // halves)
        return [
            (channel, slice(number * most, (number + 1) * most), most)
            for number, channel in enumerate(self.channels[:halves])
        ]


class PeerExperts:
    """The routed experts of one layer, as ``FixedCapacityExperts``, over a host's channels.

    Raises: EngineError for more tokens than there is room for, before anything is sent.
    """

    def __init__(self, local: PairExperts, table: RoutingTable, channels: PeerChannels) -> None:
        self.local = local
        self.table = table
        self.channels = channels

    def __call__(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        return self.begin(x, ids, weights)()

    def begin(self, x: Tensor, ids: Tensor, weights: Tensor) -> Callable[[], Tensor]:
        """Send the tokens, beside what the caller launches next; the result gives [T, d] f32."""
        most = self.channels.most_tokens
        if len(x) > most:
            raise EngineError(
                f"{len(x)} tokens in a step, but the exchange has room for {most} per rank: raise "
                "its capacity or lower max_num_seqs"
            )
        stream = self.channels.stream
        # What was allocated on a stream is used again only after it has waited for the other one.
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            begun = [
                (channel, channel.begin(x[part], ids[part], weights[part], self.table, count))
                for channel, part, count in self.channels.parts()
            ]
        return lambda: self._finish(begun)

    def assist(self) -> None:
        layout, device = self.channels.layout, self.table.rank.device
        x = torch.empty(0, layout.hidden_size, dtype=torch.bfloat16, device=device)
        ids = torch.empty(0, layout.num_choices, dtype=torch.int64, device=device)
        self(x, ids, ids.float())

    def _finish(self, begun: Sequence[tuple[PeerChannel, Begun]]) -> Tensor:
        main, stream = torch.cuda.current_stream(), self.channels.stream
        kept, results = [], []  # until all of it was used: on the other stream, too
        for channel, part in begun:
            main.wait_event(part.is_there)
            outputs = self.local.pairs(*part.arrivals)
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                results.append(channel.combine(part, *outputs))
            kept.append(outputs)
        main.wait_stream(stream)
        return results[0] if len(results) == 1 else torch.cat(results)
