"""Expert exchange between GPUs of one host through peer memory, without the host and capturable in
CUDA graphs.

Copy engines move the tokens, which costs no SMs, while the shared expert computes.  The experts'
last GEMM stores each result row in the memory of the rank that its token came from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from deepinfer.engine.model.share import Outputs, Steps, added_up
from deepinfer.errors import EngineError
from deepinfer.kernels.exchange import (
    Arrivals,
    Buffers,
    ExchangeLayout,
    copy_tokens,
    end_round,
    make_heads,
    receive_tokens,
    sendable,
)
from deepinfer.kernels.norm import NormedRows

from .groups import Group
from .peer_memory import PeerMemory
from .routing_table import RoutingTable

if TYPE_CHECKING:
    from deepinfer.kernels.gemm.activations import Activations


class ArrivalExperts(Protocol):
    """Local experts applied to tokens of all ranks; see ``engine.model.share.LocalExperts``."""

    def send_back(self, arrivals: Arrivals, places: Tensor, weights: Tensor) -> None: ...


class PeerChannel:
    """Buffers for one exchange at a time between the ranks of a host; layers take turns.

    ``most_tokens``: the maximum number of tokens of any rank in the next exchanges, the same on all
    ranks.  All ranks must make the same exchanges in the same order, and end each before the next.
    """

    def __init__(self, group: Group, layout: ExchangeLayout, device: torch.device) -> None:
        """Called by all ranks of ``group`` at once.  Raises: EngineError as ``PeerMemory``."""
        self.memory = PeerMemory(group, layout.num_bytes, device)
        self.buffers = Buffers(
            layout=layout,
            rank=group.rank,
            own=self.memory.own,
            peers=self.memory.peers,
            homes=self.memory.addresses + layout.results,
            rounds=torch.zeros(1, dtype=torch.int32, device=device),
        )
        self.most_tokens = layout.capacity
        self._streams: dict[int, torch.cuda.Stream] = {
            peer: torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            for peer in self.memory.peers
        }

    def send(
        self, tokens: Activations, ids: Tensor, weights: Tensor, table: RoutingTable
    ) -> Tensor:
        """Start copying tokens to all other ranks; returns where their results will arrive, as
        ``make_heads_triton`` does."""
        replicas = (table.rank, table.place, table.count)
        most, main = self.most_tokens, torch.cuda.current_stream()
        result_row = make_heads(self.buffers, tokens, ids, weights, replicas, most)
        for peer, stream in self._streams.items():
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                copy_tokens(self.buffers, tokens, peer, most)
        return result_row

    def end(self) -> None:
        """Wait for all results."""
        end_round(self.buffers)
        self.settle()

    def settle(self) -> None:
        """Wait until the buffers of sent tokens may be overwritten."""
        for stream in self._streams.values():
            torch.cuda.current_stream().wait_stream(stream)


class PeerExperts:
    """The routed experts of one layer, as ``FixedCapacityExperts``, through a ``PeerChannel``.

    Raises: EngineError for more tokens than there is room for, before anything is sent.
    """

    def __init__(self, local: ArrivalExperts, table: RoutingTable, channel: PeerChannel) -> None:
        self.local = local
        self.table = table
        self.channel = channel

    def __call__(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        return added_up(self.begin(NormedRows(x, x), ids, weights)()(), len(x))

    def assist(self) -> None:
        layout, device = self.channel.buffers.layout, self.table.rank.device
        x = torch.empty(0, layout.hidden_size, dtype=torch.bfloat16, device=device)
        ids = torch.empty(0, layout.num_choices, dtype=torch.int64, device=device)
        self.begin(NormedRows(x, x), ids, ids.float())()()

    def begin(self, rows: NormedRows, ids: Tensor, weights: Tensor) -> Steps:
        """Send the tokens; the last step returns the rows of results, which are valid until the
        next exchange begins."""
        channel, most, count = self.channel, self.channel.most_tokens, len(rows.values)
        if count > most:
            raise EngineError(
                f"{count} tokens in a step, but the exchange has room for {most} per rank: raise "
                "its capacity or lower max_num_seqs"
            )
        tokens = sendable(rows)
        result_row = channel.send(tokens, ids, weights, self.table)
        return lambda: self._compute(Arrivals(channel.buffers, tokens, most), result_row)

    def _compute(self, arrivals: Arrivals, result_row: Tensor) -> Callable[[], Outputs]:
        received = receive_tokens(arrivals.buffers, arrivals.most_tokens)
        self.local.send_back(arrivals, *received)

        def collect() -> Outputs:
            self.channel.end()
            return arrivals.buffers.results, result_row  # copies still read the tokens

        return collect
