"""The whole engine on the golden checkpoints: answers are the same bits in any batch."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from fake_model import run
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from deepinfer.engine.cache.kv_cache import KVCache
from deepinfer.engine.checkpoint.weights import open_checkpoint
from deepinfer.engine.config import EngineConfig
from deepinfer.engine.engine import LLMEngine
from deepinfer.engine.execution.batch import ForwardBatch
from deepinfer.engine.model.model import Model
from deepinfer.engine.types import Completion, Request, SamplingParams
from deepinfer.recipes.token_compression import token_compression
from deepinfer.recipes.tokenizer import Tokenizer

GOLDENS = Path(__file__).parents[1] / "goldens"
BLOCK_SIZE = 8
NUM_REQUESTS = 8


@cache
def load_model(name: str) -> Model:
    folder = GOLDENS / name / "checkpoint"
    checkpoint = open_checkpoint(folder)
    token_map = token_compression(Tokenizer.from_file(folder / "tokenizer.json"))
    return Model(checkpoint.config, checkpoint.load(), token_map=token_map)


@cache
def golden_data(name: str) -> dict[str, torch.Tensor]:
    return load_file(GOLDENS / name / "goldens.safetensors")


def engine_for(name: str, **fields: object) -> LLMEngine:
    values: dict[str, object] = {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 512,
        "block_size": BLOCK_SIZE,
        "num_blocks": 320,
    }
    return LLMEngine(load_model(name), EngineConfig(**(values | fields)))  # type: ignore[arg-type]


def requests_for(name: str, count: int, *, longest: int, seed: int = 0) -> list[Request]:
    """Prompts with common beginnings; half of them greedy, half sampled, all with logprobs."""
    generator = torch.Generator().manual_seed(seed)
    vocab = load_model(name).config.vocab_size

    def draw(high: int) -> int:
        return int(torch.randint(high, (1,), generator=generator))

    stem = torch.randint(3, vocab, (longest,), generator=generator).tolist()
    requests = []
    for i in range(count):
        tail = torch.randint(3, vocab, (1 + draw(longest // 3),), generator=generator).tolist()
        sampling = SamplingParams(
            temperature=float(i % 2),
            top_p=0.9 if i % 4 == 3 else 1.0,
            max_tokens=3 + draw(14),
            ignore_eos=True,
            logprobs=True,
            top_logprobs=i % 3,
            frequency_penalty=0.5 if i % 5 == 4 else 0.0,
        )
        prompt = tuple(stem[: draw(longest)] + tail)
        requests.append(
            Request(request_id=str(i), prompt_token_ids=prompt, sampling=sampling, seed=1000 + i)
        )
    return requests


def answers(done: dict[str, Completion]) -> dict[str, tuple[object, ...]]:
    """What must not depend on how a batch was run."""
    return {i: (c.output_token_ids, c.finish_reason, c.logprobs, c.error) for i, c in done.items()}


@cache
def one_by_one(name: str, *, exact: bool) -> dict[str, tuple[object, ...]]:
    """Every request alone in a fresh engine: no batch, no chunks, no hits, no drafts."""
    result = {}
    for request in requests_for(name, NUM_REQUESTS, longest=60):
        engine = engine_for(name, batch_invariant=True, exact=exact, enable_prefix_caching=False)
        result |= answers(run(engine, [request]))
    return result


GREEDY_CASES = [
    *(("tiny-a", n, True) for n in (31, 129)),
    *(("tiny-a", n, False) for n in (9, 31, 129, 300)),
    ("kdim-a", 7, True),
    ("kdim-a", 200, False),
]
# Smaller gaps between the best two logits than these are decided by rounding.
CLEAR_MARGIN = {"tiny-a": 0.05, "kdim-a": 0.25}


@pytest.mark.parametrize("name, length, exact", GREEDY_CASES)
def test_greedy_continuation_is_the_reference_codes(name: str, length: int, exact: bool) -> None:
    """In exact mode and in production mode, up to the first step that rounding decides."""
    data = golden_data(name)
    ids, margins = (
        (data[f"greedy{length}.ids"], data[f"greedy{length}.margins"])
        if exact
        else (data[f"ced{length}.greedy_ids"], data[f"ced{length}.greedy_margins"])
    )
    num_clear = int((margins > CLEAR_MARGIN[name]).long().cumprod(0).sum())
    assert num_clear > 0
    prompt = tuple(data[f"p{length}.input_ids"].tolist())
    sampling = SamplingParams(temperature=0.0, max_tokens=num_clear, ignore_eos=True)
    request = Request(request_id="g", prompt_token_ids=prompt, sampling=sampling, seed=0)
    done = run(engine_for(name, exact=exact), [request])["g"]
    assert list(done.output_token_ids) == ids[:num_clear].tolist()


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(
    order=st.permutations(range(NUM_REQUESTS)),
    max_num_seqs=st.integers(1, 8),
    budget=st.integers(8, 200),
    num_blocks=st.sampled_from([16, 24, 60]),
    drafts=st.integers(0, 3),
    caching=st.booleans(),
    exact=st.booleans(),
)
def test_batch_invariant_answers_are_bitwise_the_same(
    order: list[int],
    max_num_seqs: int,
    budget: int,
    num_blocks: int,
    drafts: int,
    caching: bool,
    exact: bool,
) -> None:
    """Tokens and log-probabilities: any order, batch, chunks, preemptions, hits and drafts."""
    requests = requests_for("tiny-a", NUM_REQUESTS, longest=60)
    engine = engine_for(
        "tiny-a",
        batch_invariant=True,
        exact=exact,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget + max_num_seqs * (1 + drafts),
        num_blocks=num_blocks,
        max_model_len=16 * BLOCK_SIZE,
        num_speculative_tokens=drafts,
        enable_prefix_caching=caching,
    )
    done = run(engine, [requests[i] for i in order])
    assert answers(done) == one_by_one("tiny-a", exact=exact)


def test_released_head_sizes_are_batch_invariant_too() -> None:
    requests = requests_for("kdim-a", 2, longest=290, seed=3)
    expected: dict[str, tuple[object, ...]] = {}
    for request in requests:
        engine = engine_for("kdim-a", batch_invariant=True, enable_prefix_caching=False)
        expected |= answers(run(engine, [request]))
    engine = engine_for(
        "kdim-a", batch_invariant=True, num_speculative_tokens=5, max_num_batched_tokens=70
    )
    for _ in range(2):
        done = run(engine, requests)
        assert answers(done) == expected
    assert any(c.num_cached_tokens for c in done.values())
    assert engine.stats().num_draft_tokens > 0


def test_preemptions_hits_and_drafts_change_no_bit_of_an_answer() -> None:
    """All of them happen here, or else the test above would prove little."""
    engine = engine_for(
        "tiny-a",
        batch_invariant=True,
        num_blocks=16,
        max_model_len=16 * BLOCK_SIZE,
        num_speculative_tokens=3,
    )
    done = run(engine, requests_for("tiny-a", NUM_REQUESTS, longest=60)[::-1])
    assert answers(done) == one_by_one("tiny-a", exact=False)
    stats = engine.stats()
    assert stats.num_preemptions > 0 and stats.num_cached_tokens > 0
    assert 0 < stats.num_accepted_tokens < stats.num_draft_tokens
    assert stats.num_accepted_tokens == sum(c.num_accepted_tokens for c in done.values())


def test_default_hit_equals_a_reference_with_the_same_truncated_windows() -> None:
    """Second of two equal prompts: its last window before the hit is run again with windows that
    begin there, then the rest.  The reference does that by hand on its own cache."""
    name = "tiny-a"
    model = load_model(name)
    window = model.config.sliding_window
    prompt = torch.randint(3, model.config.vocab_size, (75,), generator=torch.Generator())
    sampling = SamplingParams(temperature=0.0, max_tokens=1, logprobs=True, top_logprobs=5)

    def ask(engine: LLMEngine, request_id: str) -> Completion:
        ids = tuple(prompt.tolist())
        request = Request(request_id=request_id, prompt_token_ids=ids, sampling=sampling, seed=0)
        return run(engine, [request])[request_id]

    engine = engine_for(name)
    first, second = ask(engine, "first"), ask(engine, "second")
    hit = (len(prompt) - 1) // BLOCK_SIZE * BLOCK_SIZE
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, hit)

    table_width = -(-len(prompt) // BLOCK_SIZE)
    memory = KVCache.allocate(
        model.config, num_blocks=table_width, block_size=BLOCK_SIZE, num_slots=2
    )

    def forward(slot: int, begin: int, encoder_start: int, write_start: int) -> torch.Tensor:
        count = len(prompt) - begin
        batch = ForwardBatch.of(
            token_ids=prompt[begin:],
            query_lens=[count],
            first=[begin],
            block_table=[range(table_width)],
            state_slots=[slot],
            encoder_start=[encoder_start],
            decoder_start=[len(prompt) - window],
            write_start=[write_start],
            logit_rows=[count - 1],
            image_token_id=model.config.image_token_id,
        )
        return model.forward(batch, memory).logits[0].log_softmax(-1)

    full = forward(0, 0, 0, 0)
    replayed = forward(1, hit - window, hit - window, hit)
    for completion, expected in ((first, full), (second, replayed)):
        assert completion.logprobs is not None
        for token, logprob in completion.logprobs[0].top:
            assert logprob == float(expected[token])
    assert not torch.equal(full, replayed)


def test_recompute_runs_the_decoder_over_every_generated_token() -> None:
    """Without batch-invariance too, a preempted answer goes on as if nothing had happened (there
    are no hits here), on prompts much longer than the window."""
    requests = requests_for("tiny-a", 6, longest=60, seed=5)
    requests = [replace(r, sampling=replace(r.sampling, max_tokens=30)) for r in requests]
    roomy = engine_for("tiny-a", enable_prefix_caching=False)
    tight = engine_for(
        "tiny-a", enable_prefix_caching=False, num_blocks=24, max_model_len=24 * BLOCK_SIZE
    )
    expected, done = run(roomy, requests), run(tight, requests)
    assert answers(done) == answers(expected)
    assert sum(c.num_preemptions for c in done.values()) > 0
