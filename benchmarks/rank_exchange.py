"""Measures the exchange between ranks, in each of its forms.

Bandwidth counts the bytes that leave one rank; "copy" is a plain copy of as many bytes in the same
run.
"""

from __future__ import annotations

from collections.abc import Callable
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
    receive_tokens,
    sendable,
)
from deepinfer.kernels.gemm import Weight
from deepinfer.kernels.gemm.matrix_path import MatrixPath
from deepinfer.kernels.moe import experts, native_experts, send_back_experts
from deepinfer.kernels.moe.pair_order import order_pairs
from deepinfer.kernels.norm import NormedRows

LIMIT = 10.0
KV_BYTES_PER_TOKEN = 890  # full size, all layers
RING_BYTES = 40 * 133 * 528  # window rings of one request


def random_fp4(bench: Bench, seed: int, rows: int, columns: int) -> Weight:
    generator = torch.Generator(bench.device).manual_seed(seed)
    weight = torch.randn(rows, columns, generator=generator, device=bench.device)
    return Weight(*encode_fp4_rows(weight * columns**-0.5))


class SomeExperts:
    """``count`` FP4 experts from ``first`` on; narrow ones, as only the exchange is measured."""

    def __init__(self, bench: Bench, first: int, count: int) -> None:
        inner = 64 if bench.hidden < 1024 else 256
        numbers = range(first, first + count)
        gate_up = [random_fp4(bench, 2 * number, 2 * inner, bench.hidden) for number in numbers]
        down = [random_fp4(bench, 2 * number + 1, bench.hidden, inner) for number in numbers]
        self.gate_up, self.down = native_experts(Weight.stack(gate_up), Weight.stack(down))

    def __call__(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        return experts(x, ids, weights, self.gate_up, self.down, LIMIT)

    def send_back(self, arrivals: Arrivals, places: Tensor, weights: Tensor) -> None:
        send_back_experts(arrivals, places, weights, self.gate_up, self.down, LIMIT)

    def begin(self, rows: NormedRows, ids: Tensor, weights: Tensor) -> Steps:
        return only(lambda: self(rows.values, ids, weights))

    def assist(self) -> None:
        pass


class NoExperts(SomeExperts):
    """Experts that return their input, to measure only the exchange."""

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


def peer_channel(bench: Bench, capacity: int) -> PeerChannel:
    layout = ExchangeLayout(
        num_ranks=bench.size,
        capacity=capacity,
        num_choices=CHOSEN,
        hidden_size=bench.hidden,
        block=MatrixPath.of(bench.device).block,
    )
    return PeerChannel(bench.group, layout, bench.device)


def check_peer_exchange(bench: Bench) -> None:
    """Writing into each other's memory, eagerly and as a graph, against one rank: the same bits,
    since experts read the very bytes that they would quantize there."""
    half = bench.num_experts // bench.size
    whole = SomeExperts(bench, 0, bench.num_experts)
    local = SomeExperts(bench, bench.rank * half, half)
    table = RoutingTable.of(plain_placement(1, bench.num_experts, bench.size), 0, bench.device)
    channel = peer_channel(bench, 256)
    routed = PeerExperts(local, table, channel)
    for count in (16, 0, 33, 64, 256):
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
        ok = bench.all_ok(not count or all(torch.equal(run, expected) for run in runs))
        bench.say(check="peer exchange", tokens=count, ok=ok)


def routed_sum(routed: PeerExperts, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    if len(x):
        return routed(x, ids, weights)
    routed.assist()
    return x.float()


def check_exchange(bench: Bench) -> None:
    """Compare both forms with all experts on one rank; also with zero tokens on one rank."""
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
    """Time of a plain copy from each rank to the next: device to device, or by gloo on a CPU."""
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
    """Every rank sends ``rows`` to the next, and receives as many."""
    received = torch.empty_like(rows)
    target, source = (bench.rank + 1) % bench.size, (bench.rank - 1) % bench.size
    operations = [dist.P2POp(dist.isend, rows, target), dist.P2POp(dist.irecv, received, source)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()


def time_all_to_all(bench: Bench) -> None:
    """Time all-to-all with the bytes of dispatch and combine, and a plain copy of as many bytes."""
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
    """Time the forms over ``torch.distributed``, with experts that do nothing."""
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
    """Time dispatch and combine through peer memory in a graph, and a plain copy of as many bytes;
    results are sent by a separate kernel, as when the experts' last GEMM does not send them."""
    table = RoutingTable.of(plain_placement(1, bench.num_experts, bench.size), 0, bench.device)
    for count in (16,) if bench.is_small else (128, 256, 1024, 4096):
        time_peer_ways(bench, peer_channel(bench, count), table, bench.tokens(count))


def time_peer_ways(
    bench: Bench, channel: PeerChannel, table: RoutingTable, tokens: tuple[Tensor, Tensor, Tensor]
) -> None:
    buffers, count = channel.buffers, len(tokens[0])
    sent = sendable(NormedRows(tokens[0], tokens[0]))

    def send() -> None:
        channel.send(sent, *tokens[1:], table)
        channel.settle()

    def dispatch() -> tuple[Tensor, Tensor]:
        channel.send(sent, *tokens[1:], table)
        received = receive_tokens(buffers, count)
        channel.settle()
        return received

    def one_more(call: Callable[[], object]) -> Callable[[], object]:
        """As a round of its own."""
        return lambda: (call(), buffers.rounds.add_(1))

    places, _ = dispatch()
    rows = order_pairs(places, bench.num_experts // bench.size, 16)
    outputs = torch.randn(len(rows.pair), bench.hidden, device=bench.device).bfloat16()
    arrivals = Arrivals(buffers, sent, count)

    def send_back() -> None:
        arrivals.send_back(outputs, rows)

    def combine() -> None:
        send_back()
        channel.end()

    ranks = table.route(tokens[1], bench.rank)[0]
    away = ranks[ranks != bench.rank]
    leaving = {
        "dispatch": count * (bench.hidden + buffers.layout.head_bytes) * (bench.size - 1),
        "combine": 2 * bench.hidden * away.numel(),
    }
    combine()
    counting = bench.device_us(lambda: buffers.rounds.add_(1))
    for name, sends, call, counted in (
        ("dispatch", one_more(send), one_more(dispatch), counting),
        ("combine", one_more(send_back), combine, 0.0),
    ):
        us = bench.worst(bench.device_us(call)) - counted
        send_us = bench.worst(bench.device_us(sends)) - counting
        copy_us = peer_copy_us(bench, leaving[name])
        bench.say(time=f"peer memory, {name}", tokens_per_rank=count, us=us, send_us=send_us,
                  bytes=leaving[name], gbytes_per_s=leaving[name] / us / 1e3, copy_us=copy_us,
                  percent_of_copy=100 * copy_us / us)  # fmt: skip


def time_kv_transfer(bench: Bench) -> None:
    """Time the KV transfer of one long prompt: blocks and rings are gathered, sent and stored."""
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
