"""Two ranks of one host: is the exchange right, and how fast is it beside a plain copy?

    PYTHONPATH=. python benchmarks/two_gpus.py                       two GPUs, NCCL, full width
    PYTHONPATH=. python benchmarks/two_gpus.py --device cpu --small  the same steps with gloo

With ``--one-gpu`` both ranks are on one GPU and exchange through host memory: for the checks only.

Needs torch, triton, numpy and safetensors only.  One JSON line per check or time, from rank 0; a
step that fails says so and the exit code is 1.  Bandwidth counts the bytes that leave one rank.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from deepinfer.engine.checkpoint.weight_formats import encode_fp4_rows
from deepinfer.engine.checkpoint.weights import open_checkpoint
from deepinfer.engine.config import EngineConfig
from deepinfer.engine.engine import LLMEngine
from deepinfer.engine.model.model import Model
from deepinfer.engine.model.share import WHOLE_MODEL
from deepinfer.engine.parallel.exchange import ExchangedExperts, PresentExperts
from deepinfer.engine.parallel.expert_balance import plain_placement
from deepinfer.engine.parallel.fixed_exchange import FixedCapacityExperts
from deepinfer.engine.parallel.groups import Group, connect, host_store, join
from deepinfer.engine.parallel.launch import RankProcesses
from deepinfer.engine.parallel.mailbox import Mailbox
from deepinfer.engine.parallel.payload import payload_bytes
from deepinfer.engine.parallel.rank import Rank
from deepinfer.engine.parallel.routing_table import RoutingTable
from deepinfer.engine.parallel.sizes import ParallelSizes
from deepinfer.engine.types import Request, SamplingParams
from deepinfer.kernels.gemm import Weight, quantized_linear
from deepinfer.kernels.moe import experts, native_experts

ROOT = Path(__file__).parents[1]
LIMIT, CHOSEN = 10.0, 6
WORLD_SIZE = 2
KV_BYTES_PER_TOKEN = 890  # full size, all layers
RING_BYTES = 40 * 133 * 528  # window rings of one request


class Bench:
    """One rank's sizes, clock and output."""

    def __init__(
        self, rank: int, device: str, options: argparse.Namespace, mailbox: Mailbox
    ) -> None:
        small = options.small
        self.rank = rank
        self.device = torch.device(device)
        self.hidden, self.inner = (256, 64) if small else (5120, 2304)
        self.num_experts = 16 if small else 384
        self.rounds = 3 if small else 20
        self.token_counts = (4, 16) if small else (128, 4096)
        self.kv_tokens = 512 if small else 65536
        self.group = Group.split([range(WORLD_SIZE)])
        self._mailbox = mailbox

    def say(self, **values: Any) -> None:
        if self.rank == 0:
            self._mailbox.send(values)

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def microseconds(self, call: Callable[[], object]) -> float:
        """Median wall time of a call that both ranks make, begun together."""
        for _ in range(3):
            call()
        times = []
        for _ in range(self.rounds):
            self.wait()
            self.group.all_reduce(torch.zeros(1, device=self.device))
            self.wait()
            started = time.perf_counter()
            call()
            self.wait()
            times.append((time.perf_counter() - started) * 1e6)
        return statistics.median(times)

    def tokens(self, count: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """Activations and choices of ``count`` tokens of this rank."""
        generator = torch.Generator().manual_seed(1000 * seed + self.rank)
        x = torch.randn(count, self.hidden, generator=generator).bfloat16()
        order = torch.rand(count, self.num_experts, generator=generator).argsort(-1)[:, :CHOSEN]
        weights = torch.rand(count, CHOSEN, generator=generator)
        return x.to(self.device), order.sort(-1).values.to(self.device), weights.to(self.device)


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

    def begin(self, x: Tensor, ids: Tensor, weights: Tensor) -> Callable[[], Tensor]:
        return lambda: self(x, ids, weights)

    def assist(self) -> None:
        pass


class NoExperts(SomeExperts):
    """Returns what it gets: leaves the exchange alone."""

    def __init__(self) -> None:
        pass

    def __call__(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        return x.float()


def exchange(bench: Bench, local: Any, *, capacity: int = 0, is_exact: bool = True) -> Any:
    placement = plain_placement(1, bench.num_experts, WORLD_SIZE)
    table = RoutingTable.of(placement, 0, bench.device)
    sizes = {"hidden_size": bench.hidden, "num_choices": CHOSEN, "is_exact": is_exact}
    if capacity:
        return FixedCapacityExperts(local, table, bench.group, capacity=capacity, **sizes)
    return ExchangedExperts(local, table, bench.group, **sizes)


def check_exchange(bench: Bench) -> None:
    """Both forms against all experts on one rank; zero tokens on one rank too."""
    half = bench.num_experts // WORLD_SIZE
    whole = SomeExperts(bench, 0, bench.num_experts)
    local = PresentExperts(SomeExperts(bench, bench.rank * half, half))
    for capacity in (0, 64):
        routed = exchange(bench, local, capacity=capacity)
        for counts in ((33, 17), (0, 5)):
            x, ids, weights = bench.tokens(counts[bench.rank])
            got = routed(x, ids, weights)
            same = torch.equal(got, whole(x, ids, weights)) if len(x) else True
            flag = torch.tensor([int(same)], device=bench.device)
            equal = int(bench.group.all_reduce(flag)) == WORLD_SIZE
            form = "fixed" if capacity else "variable"
            bench.say(check=f"{form} exchange, tokens {counts}", bitwise_equal=equal, ok=equal)


def check_engine(bench: Bench) -> None:
    """The embedded model: greedy answers of two ranks that share experts, and of one."""
    folder = ROOT / "recipes" / "tiny"
    with np.load(ROOT / "tests" / "gpu" / "data" / "token_ids.npz") as arrays:
        data = {name: torch.from_numpy(arrays[name].astype(np.int64)) for name in arrays.files}
    checkpoint = open_checkpoint(folder)
    lens = (data["prompt_lens"] + 64).tolist()
    prompts = [ids[:-64].tolist() for ids in torch.split(data["token_ids"], lens)[:16]]
    rank = Rank(ParallelSizes(expert_parallel_size=WORLD_SIZE))
    config = EngineConfig(
        max_num_seqs=8, max_model_len=1024, batch_invariant=True, device=str(bench.device)
    )
    answers: list[dict[str, tuple[int, ...]]] = []
    for share in (WHOLE_MODEL, rank.share):
        tensors = {name: t.to(bench.device) for name, t in checkpoint.load().items()}
        model = Model(checkpoint.config, tensors, device=bench.device, share=share,
                      token_map=data["map_embedded"])  # fmt: skip
        runner = model if share is WHOLE_MODEL else rank.runner(model)
        engine = LLMEngine(runner, config, is_alone=share is WHOLE_MODEL)
        for number in range(bench.rank, len(prompts), WORLD_SIZE):
            sampling = SamplingParams(max_tokens=48, temperature=0, ignore_eos=True)
            prompt = tuple(prompts[number])
            engine.add_request(
                Request(request_id=str(number), prompt_token_ids=prompt, sampling=sampling, seed=0)
            )
        found = {}
        while engine.has_unfinished():
            found.update({c.request_id: c.output_token_ids for c in engine.step()})
        answers.append(found)
    rank.finish()
    same = sum(answers[0][key] == answers[1][key] for key in answers[0])
    both = bench.group.all_reduce(torch.tensor([same], device=bench.device))
    bench.say(check="engine, experts on two ranks", answers=len(prompts), equal=int(both),
              ok=int(both) == len(prompts))  # fmt: skip


def peer_copy_us(bench: Bench, num_bytes: int) -> float:
    """A plain copy from this rank to the other: device to device, or by gloo on a CPU."""
    if bench.device.type == "cuda":
        source = torch.empty(num_bytes, dtype=torch.uint8, device=bench.device)
        target = torch.empty_like(source, device=torch.device("cuda", 1 - bench.rank))
        return bench.microseconds(lambda: target.copy_(source))
    return bench.microseconds(
        lambda: send_to_other(bench, torch.empty(num_bytes, dtype=torch.uint8))
    )


def send_to_other(bench: Bench, rows: Tensor) -> None:
    """Both ranks send ``rows`` to the other and receive as much."""
    received = torch.empty_like(rows)
    other = 1 - bench.rank
    operations = [dist.P2POp(dist.isend, rows, other), dist.P2POp(dist.irecv, received, other)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()


def time_exchange(bench: Bench) -> None:
    """All-to-all of the bytes that dispatch and combine move, beside a copy of as many."""
    for count in bench.token_counts:
        for name, width in (
            ("dispatch", payload_bytes(bench.hidden, CHOSEN)),
            ("combine reduced", 2 * bench.hidden),
            ("combine exact", 2 * bench.hidden * CHOSEN // WORLD_SIZE),
        ):
            rows = torch.zeros(WORLD_SIZE * count, width, dtype=torch.uint8, device=bench.device)
            us = bench.microseconds(lambda rows=rows: bench.group.all_to_all(rows, None, None)())
            leaving = count * width
            copy_us = peer_copy_us(bench, leaving)
            bench.say(time=name, tokens_per_rank=count, us=us, gbytes_per_s=leaving / us / 1e3,
                      copy_us=copy_us, percent_of_copy=100 * copy_us / us)  # fmt: skip
        for capacity in (0, count):
            for is_exact in (True, False):
                local = NoExperts()
                routed = exchange(bench, local, capacity=capacity, is_exact=is_exact)
                arguments = bench.tokens(count)
                us = bench.microseconds(lambda r=routed, a=arguments: r(*a))
                bench.say(time="whole exchange without experts", tokens_per_rank=count, us=us,
                          form="fixed" if capacity else "variable", exact=is_exact)  # fmt: skip


def time_overlap(bench: Bench) -> None:
    """How much of the dispatch a shared expert hides, at 256 requests per rank."""
    count = 8 if bench.device.type == "cpu" else 256
    routed = exchange(bench, NoExperts(), capacity=count, is_exact=False)
    arguments = bench.tokens(count)
    weight = Weight(torch.randn(2 * bench.inner, bench.hidden).bfloat16().to(bench.device))

    def shared() -> Tensor:
        return quantized_linear(arguments[0], weight)

    def together() -> None:
        finish = routed.begin(*arguments)
        shared()
        finish()

    alone, compute = bench.microseconds(lambda: routed(*arguments)), bench.microseconds(shared)
    both = bench.microseconds(together)
    bench.say(time="overlap with the shared expert", tokens_per_rank=count, exchange_us=alone,
              compute_us=compute, both_us=both,
              percent_hidden=100 * (alone + compute - both) / alone)  # fmt: skip


def time_kv_transfer(bench: Bench) -> None:
    """Blocks of one long prompt and its rings: gathered, sent, put in place at the other rank."""
    block_size, per_block = 64, 64 * KV_BYTES_PER_TOKEN
    num_blocks = bench.kv_tokens // block_size
    pool = torch.zeros(2 * num_blocks, per_block, dtype=torch.uint8, device=bench.device)
    places = torch.randperm(2 * num_blocks)[:num_blocks].to(bench.device)
    rings = torch.zeros(RING_BYTES, dtype=torch.uint8, device=bench.device)
    total = num_blocks * per_block + RING_BYTES

    def hand_over() -> None:
        if bench.rank == 0:
            dist.send(torch.cat([pool[places].flatten(), rings]), 1)
        else:
            data = torch.empty(total, dtype=torch.uint8, device=bench.device)
            dist.recv(data, 0)
            pool[places] = data[:-RING_BYTES].view(num_blocks, per_block)

    us, copy_us = bench.microseconds(hand_over), peer_copy_us(bench, total)
    bench.say(time="KV of one prompt", tokens=bench.kv_tokens, bytes=total, us=us,
              gbytes_per_s=total / us / 1e3, percent_of_copy=100 * copy_us / us)  # fmt: skip


STEPS = {
    "exchange": check_exchange,
    "engine": check_engine,
    "bandwidth": time_exchange,
    "overlap": time_overlap,
    "kv": time_kv_transfer,
}


CHECKS = ("exchange", "engine")


def run_rank(mailbox: Mailbox, argument: tuple[int, int, argparse.Namespace]) -> None:
    rank, port, options = argument
    torch.set_num_threads(1)
    number = 0 if options.one_gpu else rank
    device = f"cuda:{number}" if options.device == "cuda" else "cpu"
    if options.device == "cuda":
        torch.cuda.set_device(number)
    # Without a device of its own a rank gets gloo alone: NCCL refuses two ranks on one GPU.
    linked = "cpu" if options.one_gpu else device
    join(connect("127.0.0.1", port), rank, WORLD_SIZE, facts={}, device=linked, timeout_s=120)
    bench = Bench(rank, device, options, mailbox)
    for name in options.steps or (CHECKS if options.one_gpu else STEPS):
        STEPS[name](bench)
    mailbox.send("done")
    mailbox.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("steps", nargs="*", choices=[*STEPS, []], help="default: all")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--one-gpu", action="store_true")
    options = parser.parse_args()
    store = host_store()
    count = 1 if options.one_gpu else WORLD_SIZE
    on_gpu = options.device == "cuda"
    names = [torch.cuda.get_device_name(i) for i in range(count)] if on_gpu else ["cpu"]
    print(json.dumps({"devices": names, "torch": torch.__version__, "small": options.small}))
    failures = num_done = 0
    with closing(
        RankProcesses(run_rank, [(rank, store.port, options) for rank in range(WORLD_SIZE)])
    ) as ranks:
        while num_done < WORLD_SIZE:
            for _, message in ranks.receive():
                if message == "done":
                    num_done += 1
                    continue
                failures += message.get("ok") is False
                shown = {k: round(v, 2) if isinstance(v, float) else v for k, v in message.items()}
                print(json.dumps(shown), flush=True)
    return min(failures, 1)


if __name__ == "__main__":
    sys.exit(main())
