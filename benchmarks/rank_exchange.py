"""Measurements of the exchange between ranks, in each of its forms.

Bandwidth counts the bytes that leave one rank; "copy" is a plain copy of as many in the same run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from rank_group import CHOSEN, Bench
from torch import Tensor

from deepinfer.engine.checkpoint.weight_formats import encode_fp4_rows
from deepinfer.engine.model.share import Steps, only
from deepinfer.engine.parallel.exchange import ExchangedExperts, PresentExperts
from deepinfer.engine.parallel.expert_balance import plain_placement
from deepinfer.engine.parallel.fixed_exchange import FixedCapacityExperts
from deepinfer.engine.parallel.payload import payload_bytes
from deepinfer.engine.parallel.peer_exchange import PeerChannel, PeerExperts
from deepinfer.engine.parallel.peer_memory import PeerMemory
from deepinfer.engine.parallel.routing_table import RoutingTable
from deepinfer.kernels.exchange import (
    Arrivals,
    ExchangeLayout,
    copy_blocks,
    end_round,
    receive_tokens,
    send_results,
    send_tokens,
)
from deepinfer.kernels.gemm import Weight
from deepinfer.kernels.gemm.expert_rows import ExpertRows
from deepinfer.kernels.gemm.matrix_path import MatrixPath
from deepinfer.kernels.moe import expert_parts, experts, native_experts
from deepinfer.kernels.moe.pair_order import order_pairs

LIMIT = 10.0
KV_BYTES_PER_TOKEN = 890  # full size, all layers
RING_BYTES = 40 * 133 * 528  # window rings of one request


def random_fp4(bench: Bench, seed: int, rows: int, columns: int) -> Weight:
    generator = torch.Generator(bench.device).manual_seed(seed)
    weight = torch.randn(rows, columns, generator=generator, device=bench.device)
    return Weight(*encode_fp4_rows(weight * columns**-0.5))


class SomeExperts:
    """FP4 experts from ``first`` on; narrow ones, since the exchange is what is looked at."""

    def __init__(self, bench: Bench, first: int, count: int) -> None:
        inner = 64 if bench.hidden < 1024 else 256
        numbers = range(first, first + count)
        gate_up = [random_fp4(bench, 2 * number, 2 * inner, bench.hidden) for number in numbers]
        down = [random_fp4(bench, 2 * number + 1, bench.hidden, inner) for number in numbers]
        self.gate_up, self.down = native_experts(Weight.stack(gate_up), Weight.stack(down))

    def __call__(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        return experts(x, ids, weights, self.gate_up, self.down, LIMIT)

    def parts(self, num_tokens: int) -> list[range]:
        width = self.down.num_rows
        return [range(width)] if num_tokens < 64 else [range(width // 2), range(width // 2, width)]

    def arrived(
        self, x: Arrivals, places: Tensor, weights: Tensor, parts: Sequence[range]
    ) -> Iterator[tuple[Tensor, ExpertRows]]:
        return expert_parts(x, places, weights, self.gate_up, self.down, LIMIT, parts=parts)

    def begin(self, x: Tensor, ids: Tensor, weights: Tensor) -> Steps:
        return only(lambda: self(x, ids, weights))

    def assist(self) -> None:
        pass


class NoExperts(SomeExperts):
    """Returns what it gets: leaves the exchange alone."""

    def __init__(self) -> None:
        pass

    def __call__(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        return x.float()


def exchange(bench: Bench, local: Any, *, capacity: int = 0, is_exact: bool = True) -> Any:
    placement = plain_placement(1, bench.num_experts, bench.size)
    table = RoutingTable.of(placement, 0, bench.device)
    sizes = {"hidden_size": bench.hidden, "num_choices": CHOSEN, "is_exact": is_exact}
    if capacity:
        return FixedCapacityExperts(local, table, bench.group, capacity=capacity, **sizes)
    return ExchangedExperts(local, table, bench.group, **sizes)


def peer_layout(bench: Bench, capacity: int, *, is_exact: bool) -> ExchangeLayout:
    return ExchangeLayout(
        num_ranks=bench.size,
        capacity=capacity,
        num_choices=CHOSEN,
        hidden_size=bench.hidden,
        is_exact=is_exact,
        block=MatrixPath.of(bench.device).block,
    )


def peer_channel(bench: Bench, capacity: int, *, is_exact: bool) -> PeerChannel:
    return PeerChannel(bench.group, peer_layout(bench, capacity, is_exact=is_exact), bench.device)


def check_peer_exchange(bench: Bench) -> None:
    """Writing into each other's memory, eagerly and as a graph, against one rank: the exact form
    gives its bits, since experts read the very bytes that they would quantise there."""
    half = bench.num_experts // bench.size
    whole = SomeExperts(bench, 0, bench.num_experts)
    local = SomeExperts(bench, bench.rank * half, half)
    table = RoutingTable.of(plain_placement(1, bench.num_experts, bench.size), 0, bench.device)
    for is_exact in (True, False):
        channel = peer_channel(bench, 256, is_exact=is_exact)
        routed = PeerExperts(local, table, channel)
        for count in (16, 0, 33, 64, 256):  # the last in parts
            channel.most_tokens = max(1, min(256, count + 1))
            x, ids, weights = bench.tokens(count + bench.rank if count == 33 else count, count)
            expected = whole(x, ids, weights)
            runs = [routed_sum(routed, x, ids, weights).clone() for _ in range(2)]
            bench.begin_together()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                captured = routed_sum(routed, x, ids, weights)
            for _ in range(3):
                captured.zero_()
                graph.replay()
                bench.wait()
                runs.append(captured.clone())
            scale = float(expected.abs().max()) if count else 1.0
            errors = [float((run - expected).abs().max()) / scale for run in runs if count]
            error = bench.worst(max(errors, default=0.0))
            repeats = bench.all_ok(all(torch.equal(run, runs[0]) for run in runs))
            ok = repeats and (error == 0 if is_exact else error < 0.02)
            bench.say(check="peer exchange", exact=is_exact, tokens=count, error=error,
                      ok=ok, repeats=repeats)  # fmt: skip


def routed_sum(routed: PeerExperts, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    if len(x):
        return routed(x, ids, weights)
    routed.assist()
    return x.float()


def check_exchange(bench: Bench) -> None:
    """Both forms against all experts on one rank; zero tokens on one rank too."""
    half = bench.num_experts // bench.size
    whole = SomeExperts(bench, 0, bench.num_experts)
    local = PresentExperts(SomeExperts(bench, bench.rank * half, half))
    for capacity in (0, 64):
        routed = exchange(bench, local, capacity=capacity)
        for counts in ((33, 17), (0, 5)):
            x, ids, weights = bench.tokens(counts[bench.rank % 2])
            got, expected = routed(x, ids, weights), whole(x, ids, weights)
            differs = float((got - expected).abs().max()) if len(x) else 0.0
            error = bench.worst(differs)
            form = "fixed" if capacity else "variable"
            bench.say(check=f"{form} exchange, tokens {counts}", max_error=error, ok=error == 0)


def peer_copy_us(bench: Bench, num_bytes: int) -> float:
    """A plain copy from each rank to the next: device to device, or by gloo on a CPU."""
    if bench.on_gpu:
        source = torch.empty(num_bytes, dtype=torch.uint8, device=bench.device)
        other = torch.device("cuda", (bench.rank + 1) % bench.size)
        target = torch.empty_like(source, device=other)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(3):
            target.copy_(source)
        bench.begin_together()
        begin.record()
        for _ in range(bench.rounds):
            target.copy_(source)
        end.record()
        bench.wait()
        return begin.elapsed_time(end) * 1e3 / bench.rounds
    rows = torch.empty(num_bytes, dtype=torch.uint8)
    return bench.microseconds(lambda: send_to_next(bench, rows))


def send_to_next(bench: Bench, rows: Tensor) -> None:
    """Every rank sends ``rows`` to the next and receives as much."""
    received = torch.empty_like(rows)
    target, source = (bench.rank + 1) % bench.size, (bench.rank - 1) % bench.size
    operations = [dist.P2POp(dist.isend, rows, target), dist.P2POp(dist.irecv, received, source)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()


def time_all_to_all(bench: Bench) -> None:
    """All-to-all of the bytes that dispatch and combine move, beside a copy of as many."""
    for count in (4, 16) if bench.is_small else (128, 4096):
        for name, width in (
            ("dispatch", payload_bytes(bench.hidden, CHOSEN)),
            ("combine reduced", 2 * bench.hidden),
            ("combine exact", 2 * bench.hidden * CHOSEN // bench.size),
        ):
            rows = torch.zeros(bench.size * count, width, dtype=torch.uint8, device=bench.device)
            us = bench.device_us(lambda rows=rows: bench.group.all_to_all(rows, None, None)())
            leaving = (bench.size - 1) * count * width
            copy_us = peer_copy_us(bench, leaving)
            bench.say(time=f"all-to-all, {name}", tokens_per_rank=count, us=us,
                      gbytes_per_s=leaving / us / 1e3, copy_us=copy_us,
                      percent_of_copy=100 * copy_us / us)  # fmt: skip


def time_forms(bench: Bench) -> None:
    """The forms over ``torch.distributed``, with nothing for experts to do."""
    for count in (4, 16) if bench.is_small else (128, 4096):
        for capacity in (0, count):
            for is_exact in (True, False):
                routed = exchange(bench, NoExperts(), capacity=capacity, is_exact=is_exact)
                arguments = bench.tokens(count)
                clock = bench.device_us if capacity and count < 1024 else bench.microseconds
                us = clock(lambda r=routed, a=arguments: r(*a))
                bench.say(time="exchange without experts", tokens_per_rank=count, us=us,
                          form="fixed" if capacity else "variable", exact=is_exact,
                          as_graph=clock == bench.device_us)  # fmt: skip


def time_peer_exchange(bench: Bench) -> None:
    """Each way through peer memory as part of a graph, beside a plain copy of as many bytes."""
    table = RoutingTable.of(plain_placement(1, bench.num_experts, bench.size), 0, bench.device)
    for count in (16,) if bench.is_small else (128, 256, 1024, 4096):
        for is_exact in (False, True):
            layout = peer_layout(bench, count, is_exact=is_exact)
            channel = PeerChannel(bench.group, layout, bench.device)
            time_peer_ways(bench, channel, table, bench.tokens(count))


def time_peer_ways(
    bench: Bench, channel: PeerChannel, table: RoutingTable, tokens: tuple[Tensor, Tensor, Tensor]
) -> None:
    layout, rounds, count = channel.layout, channel.rounds, len(tokens[0])
    replicas = (table.rank, table.place, table.count)

    def send() -> Tensor:
        return send_tokens(*channel.to_all, *tokens, replicas, count)

    def dispatch() -> tuple[Tensor, Tensor]:
        send()
        return receive_tokens(*channel.here, count)

    def one_more(call: Callable[[], object]) -> Callable[[], object]:
        """As a round of its own."""
        return lambda: (call(), rounds.add_(1))

    places, _ = dispatch()
    rows = order_pairs(places, bench.num_experts // bench.size, 16)
    outputs = torch.randn(len(rows.pair), bench.hidden, device=bench.device).bfloat16()

    def send_back() -> None:
        send_results(*channel.to_all, outputs, rows, count)

    def combine() -> None:
        send_back()
        end_round(*channel.here, count)

    ranks = table.route(tokens[1], bench.rank)[0]
    away = ranks[ranks != bench.rank]
    others = sum(int((ranks == peer).any(1).sum()) for peer in range(bench.size))
    others -= int((ranks == bench.rank).any(1).sum())
    leaving = {
        "dispatch": others * layout.row_bytes,
        "combine": 2 * bench.hidden * (away.numel() if layout.is_exact else others),
    }
    combine()
    counting = bench.device_us(lambda: rounds.add_(1))
    for name, sends, call, counted in (
        ("dispatch", one_more(send), one_more(dispatch), counting),
        ("combine", one_more(send_back), combine, 0.0),
    ):
        us = bench.worst(bench.device_us(call)) - counted
        send_us = bench.worst(bench.device_us(sends)) - counting
        copy_us = peer_copy_us(bench, leaving[name])
        bench.say(time=f"peer memory, {name}", tokens_per_rank=count, exact=layout.is_exact, us=us,
                  send_us=send_us, bytes=leaving[name], gbytes_per_s=leaving[name] / us / 1e3,
                  copy_us=copy_us, percent_of_copy=100 * copy_us / us)  # fmt: skip


def time_kv_transfer(bench: Bench) -> None:
    """Blocks of one long prompt and its rings: gathered, sent, put in place at the other rank."""
    kv_tokens = 512 if bench.is_small else 65536
    block_size, per_block = 64, 64 * KV_BYTES_PER_TOKEN
    num_blocks = kv_tokens // block_size
    pool = torch.zeros(2 * num_blocks, per_block, dtype=torch.uint8, device=bench.device)
    places = torch.randperm(2 * num_blocks)[:num_blocks].to(bench.device)
    rings = torch.zeros(RING_BYTES, dtype=torch.uint8, device=bench.device)
    total = num_blocks * per_block + RING_BYTES

    def hand_over() -> None:
        if bench.rank == 0:
            dist.send(torch.cat([pool[places].flatten(), rings]), 1)
        elif bench.rank == 1:
            data = torch.empty(total, dtype=torch.uint8, device=bench.device)
            dist.recv(data, 0)
            pool[places] = data[:-RING_BYTES].view(num_blocks, per_block)

    forms = {"torch.distributed": hand_over}
    if bench.on_gpu:
        staging = PeerMemory(bench.group, total, bench.device)
        addresses = staging.addresses.tolist()
        in_order = torch.arange(num_blocks, device=bench.device)
        ring_rows = rings.view(40, -1)
        layers = torch.arange(len(ring_rows), device=bench.device)
        landed = staging.own[: num_blocks * per_block].view(num_blocks, per_block)

        def write_over() -> None:
            """Every rank writes into the next one's staging memory, then takes in what is in its
            own: as in a run, where the message that it is there has come before."""
            target = addresses[(bench.rank + 1) % bench.size]
            copy_blocks(pool, places, target, in_order)
            copy_blocks(ring_rows, layers, target + num_blocks * per_block, layers)
            copy_blocks(landed, in_order, pool.data_ptr(), places)

        forms["peer memory, both ways at once"] = write_over
    for form, call in forms.items():
        us, copy_us = bench.microseconds(call), peer_copy_us(bench, total)
        bench.say(time="KV of one prompt", form=form, tokens=kv_tokens, bytes=total, us=us,
                  gbytes_per_s=total / us / 1e3, copy_us=copy_us,
                  percent_of_copy=100 * copy_us / us)  # fmt: skip
