"""Checks that parallel layouts give the same greedy answers as one rank, with the embedded model.

Uses token ids only, so that it does not need the recipes' libraries.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rank_group import Bench

from deepinfer.engine.checkpoint.weights import open_checkpoint
from deepinfer.engine.config import EngineConfig
from deepinfer.engine.engine import LLMEngine
from deepinfer.engine.model.model import Model
from deepinfer.engine.model.share import WHOLE_MODEL, Share
from deepinfer.engine.parallel.mailbox import Mailbox
from deepinfer.engine.parallel.prefill_server import PrefillServer
from deepinfer.engine.parallel.rank import Rank
from deepinfer.engine.parallel.remote_prefill import RemotePrefillWorker
from deepinfer.engine.parallel.sizes import ParallelSizes
from deepinfer.engine.types import Request, SamplingParams

ROOT = Path(__file__).parents[1]
Answers = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Layout:
    """``engines``: the ranks of each engine, by default those of ``sizes``."""

    name: str
    sizes: ParallelSizes
    engines: tuple[range, ...] | None = None
    uses_peer_memory: bool = False
    num_drafts: int = 0


def layouts(bench: Bench, kind: str) -> list[Layout]:
    """The layouts that this number of ranks supports."""
    count, half = bench.size, bench.size // 2
    experts = ParallelSizes(expert_parallel_size=count)
    if kind == "peer memory":
        return [
            Layout("experts on all, peer memory", experts, uses_peer_memory=True),
            Layout("experts on all, peer memory, drafts", experts, None, True, 5),
            Layout("prompts on half, answers on half, peer memory",
                   ParallelSizes(prefill_ranks=half, decode_ranks=half), None, True),
        ]  # fmt: skip
    return [
        Layout("experts on all", experts),
        Layout("experts on all, drafts", experts, num_drafts=5),
        Layout("prompts on half, answers on half",
               ParallelSizes(prefill_ranks=half, decode_ranks=half)),
        Layout("heads on two, experts on all",
               ParallelSizes(expert_parallel_size=count, tensor_parallel_size=2)),
        Layout("encoder and decoder layers", ParallelSizes(pipeline_parallel_size=2),
               tuple(range(first, first + 2) for first in range(0, count, 2)), num_drafts=5),
    ]  # fmt: skip


@cache
def token_data() -> dict[str, torch.Tensor]:
    with np.load(ROOT / "tests" / "gpu" / "data" / "token_ids.npz") as arrays:
        return {name: torch.from_numpy(arrays[name].astype(np.int64)) for name in arrays.files}


def requests(count: int, max_tokens: int) -> list[Request]:
    data = token_data()
    lens = (data["prompt_lens"] + 64).tolist()
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True)
    return [
        Request(
            request_id=str(number),
            prompt_token_ids=tuple(ids[:-64].tolist()),
            sampling=sampling,
            seed=0,
        )
        for number, ids in enumerate(torch.split(data["token_ids"], lens)[:count])
    ]


def load(bench: Bench, share: Share) -> Model:
    checkpoint = open_checkpoint(ROOT / "recipes" / "tiny")
    tensors = {name: tensor.to(bench.device) for name, tensor in checkpoint.load().items()}
    token_map = token_data()["map_embedded"]
    return Model(checkpoint.config, tensors, device=bench.device, share=share, token_map=token_map)


def config_for(bench: Bench, num_drafts: int, max_num_seqs: int = 8) -> EngineConfig:
    return EngineConfig(
        max_num_seqs=max_num_seqs,
        max_model_len=1024,
        batch_invariant=True,
        num_speculative_tokens=num_drafts,
        device=str(bench.device),
    )


def one_rank(bench: Bench, wanted: Sequence[Request]) -> Answers:
    return drain(LLMEngine(load(bench, WHOLE_MODEL), config_for(bench, 0)), wanted)[0]


def drain(
    engine: LLMEngine, wanted: Sequence[Request], rank: Rank | None = None
) -> tuple[Answers, float]:
    """The answers, and seconds per decode step."""
    for request in wanted:
        engine.add_request(request)
    found: Answers = {}
    while engine.has_unfinished():
        completions = engine.step()
        found.update({c.request_id: c.output_token_ids for c in completions})
        if not completions and engine.is_waiting and rank is not None and not rank.rest():
            time.sleep(0.001)
    engine.check_integrity()
    stats = engine.stats()
    return found, stats.decode_s / max(1, stats.num_decode_steps)


def run_layout(bench: Bench, layout: Layout, wanted: Sequence[Request]) -> dict[str, Any]:
    """This rank's part of the answers, and its times; no answers from ranks without rows."""
    sizes = layout.sizes
    rank = Rank(
        sizes,
        layout.engines,
        capacity=2048 if layout.uses_peer_memory else 0,
        uses_peer_memory=layout.uses_peer_memory,
    )
    model = load(bench, rank.share)
    config, own = rank.plan_cache(model, config_for(bench, layout.num_drafts))
    if not rank.takes_rows:
        rank.follow(model, own)
        return {"answers": {}}
    options: dict[str, Any] = {"is_alone": False, "captures": rank.can_capture(model)}
    if bench.rank in sizes.prefill:
        return serve_prompts(bench, rank, LLMEngine(rank.runner(model), config, own, **options))
    links = [Mailbox(bench.links[other], is_driver=False) for other in sizes.prefill]
    if links:
        options["remote_prefill"] = lambda local: RemotePrefillWorker(local, links, rank.inboxes())
    engine = LLMEngine(rank.runner(model), config, rank.cache(own), **options)
    leaders = [r for ranks in layout.engines or sizes.engines[:1] for r in ranks]
    leaders = leaders[:: max(sizes.tensor_parallel_size, sizes.pipeline_parallel_size)]
    mine = wanted[leaders.index(bench.rank) :: len(leaders)]
    answers, step_s = drain(engine, mine, rank)
    rank.finish()
    rank.release()
    for link in links:
        link.send("stop")
    graphs = engine.graphs.num_captured
    return {"answers": answers, "decode_step_ms": 1e3 * step_s, "graphs": graphs}


def serve_prompts(bench: Bench, rank: Rank, engine: LLMEngine) -> dict[str, Any]:
    """Serve prefill jobs until all decoding ranks are done."""
    links = [_Link(bench.links[other]) for other in range(rank.sizes.decode_ranks)]
    server = PrefillServer(engine, links, rank.outboxes())
    while not all(link.has_stopped for link in links):
        server.take_jobs()
        if not server.step() and not rank.rest():
            time.sleep(0.001)
    rank.finish()
    return {"answers": {}}


class _Link(Mailbox):
    has_stopped = False

    def __init__(self, connection: Any) -> None:
        super().__init__(connection, is_driver=False)

    def take(self) -> Any:
        message = super().take()
        if message == "stop":
            self.has_stopped = True
            return None
        return message


def check_answers(bench: Bench) -> None:
    """Layouts that exchange through ``torch.distributed``."""
    check_layouts(bench, layouts(bench, "torch.distributed"))


def check_peer_answers(bench: Bench) -> None:
    """Layouts that exchange through peer memory, which need one GPU per rank."""
    check_layouts(bench, layouts(bench, "peer memory"))


def check_layouts(bench: Bench, wanted_layouts: Sequence[Layout]) -> None:
    """Compare each layout with one rank."""
    wanted = requests(8 if bench.is_small else 32, 12 if bench.is_small else 48)
    expected = one_rank(bench, wanted)
    for layout in wanted_layouts:
        found = run_layout(bench, layout, wanted)
        answers = found.pop("answers")
        same = sum(expected[name] == tokens for name, tokens in answers.items())
        counts = bench.total([same, len(answers)])
        # Data-parallel groups answer different rows; each row is answered once.
        bench.say(check=layout.name, drafts=layout.num_drafts, equal=counts[0], answers=counts[1],
                  ok=counts[0] == counts[1] == len(wanted), **found)  # fmt: skip
