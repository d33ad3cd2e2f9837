"""How much of the exchange overlaps with the experts of one layer, at the released model's sizes.

The layer's MoE, as the engine runs it and with random weights, is timed with its exchange (both);
with the tokens of that exchange but nothing sent (products); the same with a barrier between ranks
in every turn, minus the barrier (in step); and without the GEMMs, with results sent by a separate
kernel (exchange).  Graphs alternate nine times; prints medians and the spread of the products.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from rank_exchange import peer_channel
from rank_group import Bench
from torch import Tensor

from deepinfer.bench.rank_tensors import RandomTensors
from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.model.layer_tensors import LayerTensors
from deepinfer.engine.model.moe import MoE
from deepinfer.engine.model.schedule import LayerPlan
from deepinfer.engine.model.share import LocalExperts, Steps, WholeModel, only
from deepinfer.engine.parallel.expert_balance import plain_placement
from deepinfer.engine.parallel.peer_exchange import PeerExperts
from deepinfer.engine.parallel.routing_table import RoutingTable
from deepinfer.kernels.exchange import Arrivals, end_round, receive_tokens, sendable
from deepinfer.kernels.gemm.activations import quantize_activations
from deepinfer.kernels.gemm.matrix_path import MatrixPath
from deepinfer.kernels.moe.pair_order import order_pairs
from deepinfer.kernels.norm import NormedRows

_TURNS = 9
_CALLS = 5  # in a graph
_REPLAYS = 3  # in a turn


class SomeHere(WholeModel):
    """A share with only the experts ``members``; tokens must not choose others."""

    def __init__(self, members: Sequence[int]) -> None:
        self.members = members

    def routed_experts(self, plan: LayerPlan, tensors: LayerTensors, limit: float) -> LocalExperts:
        return LocalExperts(tensors, self.members, limit, plan.n_routed_experts)


class Exchange:
    """The steps of one layer's exchange, without the computation in between."""

    def __init__(self, routed: PeerExperts, rows: NormedRows, ids: Tensor, weights: Tensor) -> None:
        self.local, self.channel, self.table = routed.local, routed.channel, routed.table
        self.buffers, self.most = self.channel.buffers, self.channel.most_tokens
        self.tokens = sendable(rows), ids, weights
        self.arrivals = Arrivals(self.buffers, self.tokens[0], self.most)
        self.received = self._there()
        # Pretend that all tokens are local, so that nothing is sent.
        home = torch.full_like(self.buffers.homes, self.buffers.results.data_ptr())
        self.kept = replace(self.arrivals, buffers=replace(self.buffers, homes=home))
        self.row = torch.arange(ids.numel(), dtype=torch.int32, device=ids.device)
        members = int(self.received[0].max()) + 1
        self.rows = order_pairs(self.received[0], members, 16)
        shape = len(self.rows.pair), self.buffers.layout.hidden_size
        self.outputs = torch.zeros(shape, dtype=torch.bfloat16, device=self.buffers.own.device)
        self._back()

    def __call__(self) -> None:
        self._there()
        self._back()

    def meet(self) -> None:
        """A barrier between all ranks."""
        end_round(self.buffers)

    def _there(self) -> tuple[Tensor, Tensor]:
        self.channel.send(*self.tokens, self.table)
        return receive_tokens(self.buffers, self.most)

    def _back(self) -> None:
        self.arrivals.send_back(self.outputs, self.rows)
        self.channel.end()

    def begin(self, rows: NormedRows, ids: Tensor, weights: Tensor) -> Steps:
        """Replaces the routed experts: runs the local experts on the tokens in the buffers."""

        def compute() -> tuple[Tensor, Tensor]:
            self.local.send_back(self.kept, *self.received)
            return self.buffers.results, self.row

        return only(compute)


def time_overlap(bench: Bench) -> None:
    """For up to 256 requests per rank, with one and with six positions each."""
    config = ModelConfig.flash()
    plan = config.layers[-1]
    table = RoutingTable.of(plain_placement(1, plan.n_routed_experts, bench.size), 0, bench.device)
    tensors = RandomTensors(config, 0, bench.device)
    share = SomeHere(table.members[bench.rank])
    layer = LayerTensors(tensors, f"layers.{plan.layer_id}.", bench.device, share)
    moe = MoE(config, plan, layer)
    local = moe.routed
    assert isinstance(local, LocalExperts)
    for count in (16, 64, 256, 1536):
        x, ids, weights = bench.tokens(count)
        moe.route = lambda *_, found=(ids, weights): found  # type: ignore[method-assign]
        path, order = MatrixPath.of(bench.device), moe.shared_gate_up.order
        rows = NormedRows(x, quantize_activations(x, path, order))
        channel = peer_channel(bench, count)
        routed = PeerExperts(local, table, channel)
        exchange = Exchange(routed, rows, ids, weights)
        middle, apart = in_turns(bench, layer_calls(moe, rows, routed, exchange))
        alone, both, products = (middle[n] for n in ("exchange", "both", "products"))
        in_step = middle["in step"] - middle["wait"]
        bench.say(time="exchange beside experts", tokens_per_rank=count, exchange_us=alone,
                  products_us=products, in_step_us=in_step, both_us=both,
                  products_apart_us=apart["products"], both_apart_us=apart["both"],
                  percent_hidden=100 * (1 - (both - products) / alone),
                  percent_hidden_in_step=100 * (1 - (both - in_step) / alone))  # fmt: skip


def layer_calls(
    moe: MoE, rows: NormedRows, routed: PeerExperts, exchange: Exchange
) -> dict[str, Callable[[], object]]:
    def layer(experts: PeerExperts | Exchange) -> None:
        moe.routed = experts
        moe(rows, None)

    def met() -> None:
        layer(exchange)
        exchange.meet()

    return {
        "both": partial(layer, routed),
        "products": partial(layer, exchange),
        "in step": met,
        "wait": exchange.meet,
        "exchange": exchange,
    }


def in_turns(
    bench: Bench, calls: Mapping[str, Callable[[], object]]
) -> tuple[dict[str, float], dict[str, float]]:
    """Median microseconds of the slower rank for each call, and their spread."""
    graphs = {name: captured(bench, call) for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for turn in range(_TURNS + 1):
        for name, graph in graphs.items():
            us = replayed_us(bench, graph)
            if turn:  # the first one is warm-up
                times[name].append(us)
    slower = {}
    for name, found in times.items():
        everyone = bench.group.all_gather(torch.tensor(found, device=bench.device))
        slower[name] = everyone.amax(0).tolist()
    return (
        {name: statistics.median(found) for name, found in slower.items()},
        {name: max(found) - min(found) for name, found in slower.items()},
    )


def captured(bench: Bench, call: Callable[[], object]) -> torch.cuda.CUDAGraph:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    bench.begin_together()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        for _ in range(_CALLS):
            call()
    return graph


def replayed_us(bench: Bench, graph: torch.cuda.CUDAGraph) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    bench.begin_together()
    begin.record()
    for _ in range(_REPLAYS):
        graph.replay()
    end.record()
    bench.wait()
    return begin.elapsed_time(end) * 1e3 / (_REPLAYS * _CALLS)
