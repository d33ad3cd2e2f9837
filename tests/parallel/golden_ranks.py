"""One rank of the engine on a golden checkpoint, and the requests of a test."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rank_jobs import LINKS

from deepinfer.engine.cache.kv_cache import KVCache
from deepinfer.engine.checkpoint.weights import Checkpoint, open_checkpoint
from deepinfer.engine.config import EngineConfig
from deepinfer.engine.engine import LLMEngine
from deepinfer.engine.memory.capacity import plan_cache
from deepinfer.engine.model.model import Model
from deepinfer.engine.parallel.mailbox import Mailbox
from deepinfer.engine.parallel.prefill_server import PrefillServer
from deepinfer.engine.parallel.rank import Rank
from deepinfer.engine.parallel.remote_prefill import RemotePrefillWorker
from deepinfer.engine.parallel.sizes import ParallelSizes
from deepinfer.engine.types import Completion, Request, SamplingParams
from deepinfer.recipes.token_compression import token_compression
from deepinfer.recipes.tokenizer import Tokenizer

GOLDENS = Path(__file__).parents[1] / "goldens"
FIELDS = {"max_num_seqs": 2, "max_num_batched_tokens": 48, "block_size": 8, "num_blocks": 64}
Answers = dict[str, tuple[int, ...]]


@cache
def checkpoint_of(name: str) -> tuple[Checkpoint, Any]:
    folder = GOLDENS / name / "checkpoint"
    return open_checkpoint(folder), token_compression(
        Tokenizer.from_file(folder / "tokenizer.json")
    )


@cache
def whole_model(name: str) -> Model:
    checkpoint, token_map = checkpoint_of(name)
    return Model(checkpoint.config, checkpoint.load(), token_map=token_map)


def requests_for(name: str, count: int) -> list[Request]:
    """Prompts from one token to several windows; half of them greedy."""
    generator = torch.Generator().manual_seed(5)
    vocab = checkpoint_of(name)[0].config.vocab_size
    requests = []
    for i in range(count):
        length = 1 + int(torch.randint(40, (1,), generator=generator))
        prompt = torch.randint(3, vocab, (length,), generator=generator).tolist()
        sampling = SamplingParams(temperature=float(i % 2), max_tokens=2 + i, ignore_eos=True)
        requests.append(
            Request(request_id=str(i), prompt_token_ids=tuple(prompt), sampling=sampling, seed=i)
        )
    return requests


def answer(
    engine: LLMEngine, requests: Sequence[Request], rest: Callable[[], bool] = lambda: False
) -> Answers:
    completions: list[Completion] = []
    for request in requests:
        engine.add_request(request)
    while engine.has_unfinished():
        before = engine.stats().num_steps
        completions += engine.step()
        if engine.stats().num_steps == before:
            rest()
    engine.check_integrity()
    assert all(c.finish_reason == "length" for c in completions), completions
    return {c.request_id: c.output_token_ids for c in completions}


def one_rank(name: str, count: int, fields: Mapping[str, Any]) -> Answers:
    engine = LLMEngine(whole_model(name), EngineConfig(**(FIELDS | dict(fields))))
    return answer(engine, requests_for(name, count))


def margins(name: str, count: int) -> dict[str, list[float]]:
    """How far the likeliest token was ahead at each step of each greedy answer of one rank."""
    engine = LLMEngine(whole_model(name), EngineConfig(**FIELDS))
    for request in requests_for(name, count):
        sampling = replace(request.sampling, logprobs=True, top_logprobs=2)
        engine.add_request(replace(request, sampling=sampling))
    found: dict[str, list[float]] = {}
    while engine.has_unfinished():
        for completion in engine.step():
            assert completion.logprobs is not None
            tops = [step.top for step in completion.logprobs]
            found[completion.request_id] = [abs(a[1] - b[1]) for a, b in tops]
    return found


@cache
def expert_rank(size: int, is_exact: bool, capacity: int, per_node: int) -> Rank:
    sizes = ParallelSizes(
        expert_parallel_size=size,
        exact_exchange=is_exact,
        ranks_per_node=per_node,
        num_redundant_experts=4 if per_node else 0,
        expert_rebalance_interval=4 if per_node else 0,
    )
    everyone = range(dist.get_world_size())
    engines = [everyone[i : i + size] for i in range(0, len(everyone), size)]
    return Rank(sizes, engines, capacity=capacity)


def many_ranks(
    name: str,
    count: int,
    size: int,
    fields: Mapping[str, Any],
    is_exact: bool = True,
    capacity: int = 0,
    per_node: int = 0,
) -> Answers:
    """This rank's share of the answers: every rank of a group has rows of its own."""
    rank, place = expert_rank(size, is_exact, capacity, per_node), dist.get_rank() % size
    checkpoint, token_map = checkpoint_of(name)
    tensors = checkpoint.load()
    model = Model(checkpoint.config, tensors, token_map=token_map, share=rank.share)
    engine = LLMEngine(rank.runner(model), EngineConfig(**(FIELDS | dict(fields))), is_alone=False)
    # Ranks start at different times and have different amounts to do.
    for _ in range(3 * place):
        rank.rest()
    answers = answer(engine, requests_for(name, count)[place::size])
    for _ in range(3 - place):
        if not rank.rest():
            time.sleep(0.001)
    rank.finish()
    return answers


def moving_experts(
    name: str, count: int, size: int, tensor_size: int, fields: Mapping[str, Any]
) -> tuple[Answers, int]:
    """As ``heads_on_ranks``, with experts that are placed anew every few passes; and how often
    this rank's layers were."""
    answers = heads_on_ranks(name, count, size, tensor_size, fields, 4)
    return answers, sum(b.num_moved for b in rank_of(size, tensor_size, 4).balances)


@cache
def rank_of(size: int, tensor_size: int, num_redundant: int = 0) -> Rank:
    """This rank's place in one of two engines of ``max(size, tensor_size)`` ranks."""
    sizes = ParallelSizes(
        expert_parallel_size=size,
        tensor_parallel_size=tensor_size,
        num_redundant_experts=num_redundant,
        expert_rebalance_interval=4 if num_redundant else 0,
    )
    count, everyone = sizes.world_size, range(dist.get_world_size())
    engines = [everyone[i : i + count] for i in range(0, len(everyone), count)]
    return Rank(sizes, engines)


def heads_on_ranks(
    name: str,
    count: int,
    size: int,
    tensor_size: int,
    fields: Mapping[str, Any],
    num_redundant: int = 0,
) -> Answers:
    """This rank's share of the answers where ``tensor_size`` ranks share heads."""
    rank = rank_of(size, tensor_size, num_redundant)
    checkpoint, token_map = checkpoint_of(name)
    tensors = checkpoint.load()
    model = Model(checkpoint.config, tensors, token_map=token_map, share=rank.share)
    config, own = plan_cache(model, EngineConfig(**(FIELDS | dict(fields))), None)
    assert isinstance(own, KVCache)
    if not rank.takes_rows:
        rank.follow(model, own)
        return {}
    engine = LLMEngine(rank.runner(model), config, rank.cache(own))
    world, me = max(size, tensor_size), dist.get_rank()
    mine = requests_for(name, count)[me % world // tensor_size :: world // tensor_size]
    answers = answer(engine, mine)
    rank.finish()
    rank.release()
    return answers


@cache
def pipeline_of() -> Rank:
    """This rank's place in one of two pipelines."""
    everyone = range(dist.get_world_size())
    engines = [everyone[i : i + 2] for i in range(0, len(everyone), 2)]
    return Rank(ParallelSizes(pipeline_parallel_size=2), engines)


def layers_on_ranks(name: str, count: int, fields: Mapping[str, Any]) -> Answers:
    """The answers, on the first rank of each pipeline; nothing on the others."""
    rank = pipeline_of()
    checkpoint, token_map = checkpoint_of(name)
    model = Model(checkpoint.config, checkpoint.load(), token_map=token_map, share=rank.share)
    assert 0 < len(model.blocks) < checkpoint.config.num_hidden_layers
    config, own = plan_cache(model, EngineConfig(**(FIELDS | dict(fields))), None)
    assert isinstance(own, KVCache)
    if not rank.takes_rows:
        rank.follow(model, own)
        return {}
    engine = LLMEngine(rank.runner(model), config, rank.cache(own))
    answers = answer(engine, requests_for(name, count))
    rank.release()
    return answers


def moved_rings(name: str) -> bool:
    """Whether the rings of a slot come back in another slot, on both ranks of a pipeline."""
    rank, config = pipeline_of(), checkpoint_of(name)[0].config
    own = KVCache.allocate(config, num_blocks=1, block_size=8, num_slots=2)
    for tensor in (own.window, own.draft, own.history, *own.partial.values()):
        tensor.copy_(torch.randint(100, tensor.shape) + 100 * dist.get_rank())
    if not rank.takes_rows:
        rank.follow(whole_model(name), own)
    else:
        cache = rank.cache(own)
        snapshot: Any = cache.snapshot(0)
        assert not torch.equal(snapshot.rings[0], snapshot.rings[len(snapshot.rings) // 2])
        cache.restore(1, snapshot)
        rank.runner(whole_model(name))
        rank.release()
    pairs = zip(own.snapshot(0).rings, own.snapshot(1).rings, strict=True)
    return all(torch.equal(one, other) for one, other in pairs)


class LinkMailbox(Mailbox):
    """A link that counts how often the other side said that it is done."""

    num_stops = 0

    def take(self) -> Any:
        message = super().take()
        if message == "stop":
            LinkMailbox.num_stops += 1
            return self.take()
        return message


@cache
def mailbox_to(rank: int) -> LinkMailbox:
    return LinkMailbox(LINKS[rank], is_driver=False)


@cache
def role_of(num_prefill: int, num_decode: int) -> Rank:
    """This rank's place: decoding ranks first, then those that prefill, then idle ones."""
    sizes = ParallelSizes(prefill_ranks=num_prefill, decode_ranks=num_decode)
    idle = [[rank] for rank in range(sizes.world_size, dist.get_world_size())]
    return Rank(sizes, [*sizes.engines, *idle])


def two_roles(
    name: str, count: int, num_prefill: int, num_decode: int, fields: Mapping[str, Any]
) -> Answers:
    """Prompts on some ranks, answers on others; a decoding rank's share of the answers."""
    me, rank = dist.get_rank(), role_of(num_prefill, num_decode)
    if me >= num_prefill + num_decode:
        return {}
    checkpoint, token_map = checkpoint_of(name)
    tensors = checkpoint.load()
    model = Model(checkpoint.config, tensors, token_map=token_map, share=rank.share)
    config = EngineConfig(**(FIELDS | dict(fields)))
    prefill = range(num_decode, num_decode + num_prefill)
    if me in prefill:
        LinkMailbox.num_stops = 0
        mailboxes = [mailbox_to(r) for r in range(num_decode)]
        server = PrefillServer(LLMEngine(rank.runner(model), config, is_alone=False), mailboxes)
        while LinkMailbox.num_stops < num_decode:
            server.take_jobs()
            if not server.step() and not rank.rest():
                time.sleep(0.001)
        rank.finish()
        return {}
    links = [mailbox_to(r) for r in prefill]
    engine = LLMEngine(
        rank.runner(model),
        replace(config, enable_prefix_caching=False),
        is_alone=False,
        remote_prefill=lambda local: RemotePrefillWorker(local, links),
    )
    answers = answer(engine, requests_for(name, count)[me::num_decode], rank.rest)
    rank.finish()
    for link in links:
        link.send("stop")
    return answers


def planned(name: str) -> int:
    """Blocks of this rank's cache where each rank has room for another number."""
    config = EngineConfig(**(FIELDS | {"num_blocks": 40 + dist.get_rank()}))
    planned, cache = rank_of(4, 2).plan_cache(whole_model(name), config)
    assert planned.num_blocks == cache.num_blocks
    return cache.num_blocks
