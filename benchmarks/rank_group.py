"""Common code of the multi-GPU benchmarks: ranks, clocks, data, isolated parts.

Each part runs in new processes, so that one that fails or hangs does not affect the others.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from itertools import combinations
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from deepinfer.engine.parallel.groups import Group, connect, host_store, join
from deepinfer.engine.parallel.launch import RankProcesses
from deepinfer.engine.parallel.mailbox import Mailbox, make_link
from deepinfer.errors import DeepInferError

CHOSEN = 6


class Bench:
    """One rank's sizes, clock and output."""

    def __init__(
        self,
        rank: int,
        device: str,
        options: argparse.Namespace,
        mailbox: Mailbox,
        links: Mapping[int, Connection],
    ) -> None:
        """``links``: a connection to each other rank."""
        small = options.small
        self.options = options
        self.rank = rank
        self.size: int = options.ranks
        self.device = torch.device(device)
        self.on_gpu = self.device.type == "cuda"
        self.has_own_gpu = self.on_gpu and not options.one_gpu
        self.links = links
        self.is_small: bool = small
        self.hidden, self.inner = (256, 64) if small else (5120, 2304)
        self.num_experts = 16 if small else 384
        self.rounds = 3 if small else 20
        self.group = Group.split([range(self.size)])
        self._mailbox = mailbox

    def say(self, **values: Any) -> None:
        if self.rank == 0:
            self._mailbox.send(values)

    def wait(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize(self.device)

    def begin_together(self) -> None:
        self.wait()
        self.group.all_reduce(torch.zeros(1, device=self.device))
        self.wait()

    def microseconds(self, call: Callable[[], object]) -> float:
        """Median wall time, including launches, of a call that all ranks start together."""
        for _ in range(3):
            call()
        times = []
        for _ in range(self.rounds):
            self.begin_together()
            started = time.perf_counter()
            call()
            self.wait()
            times.append((time.perf_counter() - started) * 1e6)
        return statistics.median(times)

    def device_us(self, call: Callable[[], object], repeats: int = 50) -> float:
        """Time of a call in a CUDA graph, as the mean of many; on a CPU, like ``microseconds``."""
        if not self.on_gpu:
            return self.microseconds(call)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())  # earlier work may write its operands
        with torch.cuda.stream(stream):
            for _ in range(3):
                call()
        self.begin_together()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            for _ in range(5):
                call()
        for _ in range(2):
            graph.replay()
        self.begin_together()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(repeats // 5):
            graph.replay()
        end.record()
        self.wait()
        return begin.elapsed_time(end) * 1e3 / (repeats // 5 * 5)

    def all_ok(self, ok: bool) -> bool:
        flag = torch.tensor([int(ok)], device=self.device)
        return int(self.group.all_reduce(flag)) == self.size

    def total(self, values: Sequence[int]) -> list[int]:
        """The sums over all ranks."""
        summed = self.group.all_reduce(torch.tensor(list(values), device=self.device))
        found: list[int] = summed.tolist()
        return found

    def worst(self, value: float) -> float:
        """The largest over all ranks."""
        found = self.group.all_gather(torch.tensor([value], device=self.device))
        return float(found.max())

    def tokens(self, count: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """Activations, expert ids and weights of ``count`` tokens of this rank."""
        generator = torch.Generator().manual_seed(1000 * seed + self.rank)
        x = torch.randn(count, self.hidden, generator=generator).bfloat16()
        order = torch.rand(count, self.num_experts, generator=generator).argsort(-1)[:, :CHOSEN]
        weights = torch.rand(count, CHOSEN, generator=generator)
        chosen = order.sort(-1).values
        return x.to(self.device), chosen.to(self.device), weights.to(self.device)


Part = Callable[[Bench], None]


def run_rank(
    mailbox: Mailbox,
    argument: tuple[int, int, argparse.Namespace, Part, Mapping[int, Connection]],
) -> None:
    rank, port, options, part, links = argument
    torch.set_num_threads(1)
    number = 0 if options.one_gpu else rank
    device = f"cuda:{number}" if options.device == "cuda" else "cpu"
    if options.device == "cuda":
        torch.cuda.set_device(number)
    # Ranks that share a GPU use gloo only, as NCCL refuses two ranks on one GPU.
    linked = "cpu" if options.one_gpu else device
    join(connect("127.0.0.1", port), rank, options.ranks, facts={}, device=linked, timeout_s=60)
    part(Bench(rank, device, options, mailbox, links))
    mailbox.send("done")
    mailbox.wait()


def run_parts(
    parts: Mapping[str, Part],
    options: argparse.Namespace,
    rows: list[dict[str, Any]] | None = None,
) -> int:
    """Run each part on new ranks, print their results and add them to ``rows``; returns the number
    of failures."""
    rows = [] if rows is None else rows

    def show(values: Mapping[str, Any]) -> None:
        rows.append(dict(values))
        print(json.dumps(values), flush=True)

    num_gpus = torch.cuda.device_count() if options.device == "cuda" else 0
    names = [torch.cuda.get_device_name(i) for i in range(min(num_gpus, options.ranks))]
    show({"devices": names or ["cpu"], "torch": torch.__version__, "ranks": options.ranks,
          "small": options.small})  # fmt: skip
    failures = 0
    for name, part in parts.items():
        started = time.monotonic()
        try:
            failures += run_part(part, options, show)
        except DeepInferError as error:
            failures += 1
            show({"part": name, "ok": False, "error": str(error)})
        show({"part": name, "seconds": round(time.monotonic() - started, 1)})
    return failures


def run_part(
    part: Part, options: argparse.Namespace, show: Callable[[Mapping[str, Any]], None]
) -> int:
    """Number of failed checks of one part.  Raises: DeepInferError if a rank fails or times out."""
    store = host_store()
    failures = num_done = 0
    deadline = time.monotonic() + options.part_s
    links = all_links(options.ranks)
    arguments = [(rank, store.port, options, part, links[rank]) for rank in range(options.ranks)]
    with closing(RankProcesses(run_rank, arguments)) as ranks:
        for link in (end for ends in links for end in ends.values()):
            link.close()
        while num_done < options.ranks:
            messages = ranks.receive(max(deadline - time.monotonic(), 0.1))
            for _, message in messages:
                if message == "done":
                    num_done += 1
                    continue
                failures += message.get("ok") is False
                show({k: _short(v) for k, v in message.items()})
            if not messages and time.monotonic() > deadline:
                raise DeepInferError(f"timed out after {options.part_s} s; the ranks were stopped")
    return failures


def all_links(count: int) -> list[dict[int, Connection]]:
    """For each rank, its ends of the connections to all other ranks."""
    links: list[dict[int, Connection]] = [{} for _ in range(count)]
    for one, other in combinations(range(count), 2):
        links[one][other], links[other][one] = make_link()
    return links


def add_options(parser: argparse.ArgumentParser, *, ranks: int) -> None:
    parser.add_argument("--ranks", type=int, default=ranks)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--one-gpu", action="store_true")
    parser.add_argument("--part-s", type=float, default=60.0, help="seconds a part may take")


def _short(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value
