"""Answers and log-probabilities are the same bits whatever else runs, however it is scheduled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from gpu_models import ROOT, ask, greedy_requests, make_engine, token_data

from deepinfer.engine.checkpoint.weights import open_checkpoint
from deepinfer.engine.config import EngineConfig
from deepinfer.engine.engine import LLMEngine
from deepinfer.engine.execution import decode
from deepinfer.engine.execution.decode_step import DecodeStep
from deepinfer.engine.model.model import Model
from deepinfer.engine.types import Completion, Request

pytestmark = pytest.mark.gpu

NUM_TOKENS = 24
BASE = {"max_num_seqs": 64, "max_num_batched_tokens": 2048, "batch_invariant": True}


def mixed_requests(count: int) -> list[Request]:
    """Greedy and sampled, some with log-probabilities, some cut by top-p."""
    asked = greedy_requests(min(count, 200), NUM_TOKENS)
    asked += [replace(asked[i], request_id=str(200 + i), seed=200 + i) for i in range(count - 200)]
    result = []
    for number, request in enumerate(asked):
        sampling = replace(
            request.sampling,
            temperature=float(number % 2),
            top_p=0.9 if number % 4 == 3 else 1.0,
            logprobs=number % 3 == 0,
            top_logprobs=2 if number % 6 == 0 else 0,
        )
        result.append(replace(request, sampling=sampling))
    return result


@cache
def expected() -> dict[str, Completion]:
    return ask(make_engine("embedded", "cuda", **BASE), mixed_requests(256))


def assert_same(done: dict[str, Completion]) -> None:
    for name, completion in done.items():
        assert completion.output_token_ids == expected()[name].output_token_ids, name
        assert completion.logprobs == expected()[name].logprobs, name


@pytest.mark.parametrize("batch, count", [(1, 3), (2, 6), (7, 14), (64, 64), (256, 256)])
def test_batch_size(batch: int, count: int) -> None:
    fields = BASE | {"max_num_seqs": batch}
    assert_same(ask(make_engine("embedded", "cuda", **fields), mixed_requests(count)))


@pytest.mark.parametrize("chunk", [64, 150])
def test_chunk_size(chunk: int) -> None:
    fields = BASE | {"max_num_seqs": 8, "max_num_batched_tokens": chunk}
    assert_same(ask(make_engine("embedded", "cuda", **fields), mixed_requests(16)))


def test_preemption() -> None:
    fields = BASE | {"num_blocks": 40, "max_model_len": 512, "block_size": 16}
    done = ask(make_engine("embedded", "cuda", **fields), mixed_requests(24))
    assert sum(completion.num_preemptions for completion in done.values()) > 0
    assert_same(done)


def test_prefix_hits() -> None:
    """Rings that a pass saved on its way through a prompt continue the same prompt later."""
    engine = make_engine("embedded", "cuda", **(BASE | {"block_size": 16}))
    for _ in range(2):
        done = ask(engine, mixed_requests(64))
        assert_same(done)
    assert sum(completion.num_cached_tokens for completion in done.values()) > 0


@pytest.mark.parametrize("drafts", [2, 5])
def test_speculation(drafts: int) -> None:
    fields = BASE | {"num_speculative_tokens": drafts, "max_num_seqs": 16}
    done = ask(make_engine("embedded", "cuda", **fields), mixed_requests(48))
    assert sum(completion.num_accepted_tokens for completion in done.values()) > 0
    assert_same(done)


def test_graphs_and_overlap() -> None:
    """A step that is replayed gives what it gives when each kernel is launched."""
    requests = [r for r in mixed_requests(64) if not r.sampling.logprobs]
    engine = make_engine("embedded", "cuda", **BASE)
    assert_same(ask(engine, requests))
    assert engine.graphs.num_captured > 0
    plain = make_engine("embedded", "cuda", captures=False, **BASE)
    assert_same(ask(plain, requests))
    assert plain.graphs.num_captured == 0


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("captures", [True, False])
@pytest.mark.parametrize("drafts", [0, 5])
def test_launching_a_step_waits_for_nothing(
    captures: bool, drafts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch raises where the host would wait for the device; without graphs drafting waits for its
    confidences."""

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            torch.cuda.set_sync_debug_mode("error")
            try:
                return function(*args)
            finally:
                torch.cuda.set_sync_debug_mode("default")

        return call

    monkeypatch.setattr(DecodeStep, "run", watched(DecodeStep.run))
    monkeypatch.setattr(decode, "choose_drafts", watched(decode.choose_drafts))
    fields = BASE | {"num_speculative_tokens": drafts, "max_num_seqs": 16}
    assert_same(
        ask(make_engine("embedded", "cuda", captures=captures, **fields), mixed_requests(16))
    )


def test_repeated_runs() -> None:
    for _ in range(2):
        assert_same(ask(make_engine("embedded", "cuda", **BASE), mixed_requests(64)))


def test_a_row_of_nan_ends_alone() -> None:
    """One token's embedding is NaN: whoever brings it ends, the others' bits stay."""
    checkpoint = open_checkpoint(ROOT / "recipes" / "tiny")
    tensors = {name: tensor.cuda() for name, tensor in checkpoint.load().items()}
    damaged = 4000
    embed = tensors["embed.weight"].clone()
    embed[damaged] = torch.nan
    model = Model(
        checkpoint.config, tensors | {"embed.weight": embed}, device="cuda",
        token_map=token_data()["map_embedded"],
    )  # fmt: skip
    config = EngineConfig(
        num_blocks=1600, max_model_len=1024, device="cuda", max_num_seqs=8, batch_invariant=True
    )
    requests = mixed_requests(8)
    prompt = list(requests[2].prompt_token_ids)
    prompt[-1] = damaged  # further back, only its own position would have no number
    requests[2] = replace(requests[2], prompt_token_ids=tuple(prompt))
    assert not any(damaged in request.prompt_token_ids for request in requests[3:])
    done = ask(LLMEngine(model, config), requests)
    bad = done.pop("2")
    assert bad.finish_reason == "error" and "not numbers" in (bad.error or "")
    assert_same(done)


def test_caches_take_what_is_left() -> None:
    """Without a number of blocks; all that was allocated stays within the share."""
    share = 0.5
    fields = BASE | {"num_blocks": None, "max_model_len": None, "gpu_memory": share}
    engine = make_engine("embedded", "cuda", **fields)
    assert_same(ask(engine, mixed_requests(64)))
    free, total = torch.cuda.mem_get_info()
    assert total - free < share * total
