"""How much of the exchange hides behind the experts of one layer, at the released model's sizes.

The layer's MoE as the engine runs it, with weights of random codes, is timed with its exchange
(both); on the tokens of the same exchange as they lie in memory, with nothing sent (products); the
same with ranks that wait for each other in every turn, less that wait alone (in step); and without
products (exchange).  They take turns, five times; medians, and how far apart the products were.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial

from rank_exchange import peer_channel
from rank_group import Bench
from torch import Tensor

from deepinfer.bench.rank_share import RandomTensors
from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.model.layer_tensors import LayerTensors
from deepinfer.engine.model.moe import MoE
from deepinfer.engine.model.schedule import LayerPlan
from deepinfer.engine.model.share import LocalExperts, Steps, WholeModel, only
from deepinfer.engine.parallel.expert_balance import plain_placement
from deepinfer.engine.parallel.peer_exchange import PeerExperts
from deepinfer.engine.parallel.routing_table import RoutingTable
from deepinfer.kernels.exchange import Arrivals, end_round, receive_tokens, send_results
from deepinfer.kernels.exchange import send_tokens as send
from deepinfer.kernels.gemm.activations import quantize_activations
from deepinfer.kernels.gemm.matrix_path import MatrixPath
from deepinfer.kernels.norm import NormedRows

_TURNS = 5


class SomeHere(WholeModel):
    """A share with some of the experts, which nobody asks for others."""

    def __init__(self, members: Sequence[int]) -> None:
        self.members = members

    def routed_experts(self, plan: LayerPlan, tensors: LayerTensors, limit: float) -> LocalExperts:
        return LocalExperts(tensors, self.members, limit, plan.n_routed_experts)


class Exchange:
    """The steps of one layer's exchange, without what computes in between."""

    def __init__(self, routed: PeerExperts, tokens: tuple[Tensor, Tensor, Tensor]) -> None:
        self.routed, self.tokens = routed, tokens
        channel = routed.channel
        self.most = channel.most_tokens
        self.arrivals = Arrivals(channel.layout, channel.memory.own, self.most)
        self.received = self._there()
        self.whole = [range(channel.layout.hidden_size)]
        self.results = next(routed.local.arrived(self.arrivals, *self.received, self.whole))
        self._back()

    def __call__(self) -> None:
        self._there()
        self._back()

    def meet(self) -> None:
        """Wait for all ranks, with nothing to send."""
        channel, table = self.routed.channel, self.routed.table
        nothing = tuple(part[:0] for part in self.tokens)
        send(*channel.to_all, *nothing, (table.rank, table.place, table.count), 1)
        receive_tokens(*channel.here, 1)
        channel.rounds.add_(1)

    def _there(self) -> tuple[Tensor, Tensor]:
        channel, table = self.routed.channel, self.routed.table
        send(*channel.to_all, *self.tokens, (table.rank, table.place, table.count), self.most)
        return receive_tokens(*channel.here, self.most)

    def _back(self) -> None:
        channel = self.routed.channel
        send_results(*channel.to_all, *self.results, self.most)
        end_round(*channel.here, self.most)

    def begin(self, x: Tensor, ids: Tensor, weights: Tensor) -> Steps:
        """In place of the routed experts: those here on what lies here, at once."""
        local = self.routed.local

        def compute() -> tuple[Tensor, Tensor]:
            outputs, rows = next(local.arrived(self.arrivals, *self.received, self.whole))
            return outputs, rows.row

        return only(compute)


def time_overlap(bench: Bench) -> None:
    """At 256 requests of each rank, one position and six of each."""
    config = ModelConfig.flash()
    plan = config.layers[-1]
    table = RoutingTable.of(plain_placement(1, plan.n_routed_experts, bench.size), 0, bench.device)
    tensors = RandomTensors(config, 0, bench.device)
    share = SomeHere(table.members[bench.rank])
    layer = LayerTensors(tensors, f"layers.{plan.layer_id}.", bench.device, share)
    moe = MoE(config, plan, layer)
    local = moe.routed
    assert isinstance(local, LocalExperts)
    for count in (256, 1536):
        x, ids, weights = bench.tokens(count)
        moe.route = lambda *_, found=(ids, weights): found  # type: ignore[method-assign]
        path, order = MatrixPath.of(bench.device), moe.shared_gate_up.order
        rows = NormedRows(x, quantize_activations(x, path, order))
        for is_exact in (True, False):
            channel = peer_channel(bench, count, is_exact=is_exact)
            moe.routed = PeerExperts(local, table, channel)
            exchange = Exchange(moe.routed, (x, ids, weights))
            bench.begin_together()
            times = in_turns(bench, moe, rows, exchange)
            middle = {name: statistics.median(found) for name, found in times.items()}
            alone, both, products = (middle[n] for n in ("exchange", "both", "products"))
            in_step = middle["in step"] - middle["wait"]
            bench.say(time="exchange beside experts", tokens_per_rank=count, exact=is_exact,
                      exchange_us=alone, products_us=products, in_step_us=in_step, both_us=both,
                      products_apart_us=max(times["products"]) - min(times["products"]),
                      percent_hidden=100 * (1 - (both - products) / alone),
                      percent_hidden_in_step=100 * (1 - (both - in_step) / alone))  # fmt: skip


def in_turns(
    bench: Bench, moe: MoE, rows: NormedRows, exchange: Exchange
) -> dict[str, list[float]]:
    """Microseconds of the slower rank, five of each."""
    layer = partial(moe, rows, None)

    def met() -> None:
        layer()
        exchange.meet()

    calls = {
        "both": (exchange.routed, layer),
        "products": (exchange, layer),
        "in step": (exchange, met),
        "wait": (exchange, exchange.meet),
        "exchange": (exchange, exchange),
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(_TURNS):
        for name, (moe.routed, call) in calls.items():
            times[name].append(bench.worst(bench.device_us(call, repeats=25)))
    return times
