"""What a caller of ``LLMEngine`` sees: ends, errors, rules, log-probabilities, drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from fake_model import (
    FakeCache,
    FakeConfig,
    FakeModel,
    make_engine,
    next_logits,
    oracle,
    request,
    run,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.engine.execution.batch import ForwardBatch, ForwardOutput
from deepinfer.engine.types import Completion, Request
from deepinfer.errors import EngineError
from deepinfer.kernels.sampling import sample

PROMPT = [7, 8, 9, 10, 11, 12]


def ask(engine_request: Request, **settings_: object) -> Completion:
    return run(make_engine(**settings_), [engine_request])[engine_request.request_id]


def reference_answer(
    asked: Request, max_tokens: int, *, stop_at: frozenset[int] = frozenset()
) -> list[int]:
    """The sampled answer by definition: one token at a time, rules applied by hand."""
    sampling = asked.sampling
    config = FakeConfig()
    tokens = list(asked.prompt_token_ids)
    start = max(0, len(tokens) - config.sliding_window)
    output: list[int] = []
    while len(output) < max_tokens:
        logits = next_logits(config, tokens, 0, start)
        for token in range(config.vocab_size):
            value = float(logits[token])
            if token in tokens:
                repetition = sampling.repetition_penalty
                value = value / repetition if value > 0 else value * repetition
            value -= sampling.frequency_penalty * output.count(token)
            value -= sampling.presence_penalty * (token in output)
            value += sampling.logit_bias.get(token, 0.0)
            if len(output) < sampling.min_tokens and token in stop_at:
                value = -float("inf")
            logits[token] = value
        drawn = sample(
            logits[None],
            torch.tensor([sampling.temperature]),
            torch.tensor([sampling.top_p]),
            torch.tensor([sampling.top_k]),
            torch.tensor([sampling.min_p]),
            torch.tensor([asked.seed]),
            torch.tensor([len(tokens)]),
        )
        tokens.append(int(drawn))
        output.append(int(drawn))
        if output[-1] in stop_at:
            break
    return output


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    prompt=st.lists(st.integers(2, 49), min_size=1, max_size=12),
    sampling=st.fixed_dictionaries(
        {
            "temperature": st.sampled_from([0.0, 0.5, 1.0]),
            "top_p": st.sampled_from([0.6, 1.0]),
            "top_k": st.sampled_from([0, 3]),
            "presence_penalty": st.sampled_from([0.0, 1.5]),
            "frequency_penalty": st.sampled_from([0.0, 0.75]),
            "repetition_penalty": st.sampled_from([1.0, 1.5]),
            "logit_bias": st.sampled_from([{}, {5: 4.0, 20: -100.0}]),
            "min_tokens": st.sampled_from([0, 3, 9]),
            "stop_token_ids": st.sampled_from([(), (30, 31, 32, 33)]),
            "ignore_eos": st.booleans(),
        }
    ),
    drafts=st.sampled_from([0, 1, 4]),
)
def test_sampled_answers_equal_their_definition_with_drafts_on_or_off(
    seed: int, prompt: list[int], sampling: dict[str, object], drafts: int
) -> None:
    asked = request("a", prompt, seed=seed, max_tokens=12, **sampling)
    ends = set(asked.sampling.stop_token_ids) | (
        set() if asked.sampling.ignore_eos else {FakeConfig().eos_token_id}
    )
    expected = reference_answer(asked, 12, stop_at=frozenset(ends))
    others = [request(str(i), [3 + i] * (i + 2), max_tokens=9, temperature=1.0) for i in range(3)]
    engine = make_engine(num_speculative_tokens=drafts, max_num_batched_tokens=32)
    completion = run(engine, [others[0], asked, *others[1:]])["a"]
    assert list(completion.output_token_ids) == expected
    is_stopped = expected[-1] in ends
    assert completion.finish_reason == ("stop" if is_stopped else "length")
    is_asked = expected[-1] in asked.sampling.stop_token_ids
    assert completion.stop_reason == (expected[-1] if is_stopped and is_asked else None)


class StopAfter:
    """A stop checker whose stop string ends with the n-th token it sees."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.seen: list[int] = []

    def push(self, token_id: int) -> str | None:
        self.seen.append(token_id)
        return "END" if len(self.seen) == self.count else None


@pytest.mark.parametrize("drafts", [0, 4])
@pytest.mark.parametrize("count, min_tokens, length", [(3, 0, 3), (1, 0, 1), (3, 5, 10)])
def test_a_stop_string_ends_the_answer_with_its_token(
    drafts: int, count: int, min_tokens: int, length: int
) -> None:
    checker = StopAfter(count)
    asked = request("a", PROMPT, max_tokens=10, min_tokens=min_tokens, ignore_eos=True)
    completion = ask(
        replace(asked, stop_checker=checker),
        num_speculative_tokens=drafts,
        max_num_batched_tokens=32,
    )
    assert len(completion.output_token_ids) == length
    assert checker.seen == list(completion.output_token_ids)
    expected = ("stop", "END") if length == count else ("length", None)
    assert (completion.finish_reason, completion.stop_reason) == expected


@pytest.mark.parametrize("drafts", [0, 5])
def test_logprobs_are_those_of_the_raw_logits(drafts: int) -> None:
    asked = request(
        "a",
        PROMPT,
        temperature=1.0,
        seed=3,
        max_tokens=9,
        ignore_eos=True,
        logprobs=True,
        top_logprobs=3,
        presence_penalty=1.0,
        logit_bias={4: 2.0},
    )
    completion = ask(asked, num_speculative_tokens=drafts, max_num_batched_tokens=32)
    assert completion.logprobs is not None and len(completion.logprobs) == 9
    tokens = list(PROMPT)
    for token, entry in zip(completion.output_token_ids, completion.logprobs, strict=True):
        expected = next_logits(FakeConfig(), tokens, 0, 2).log_softmax(-1)
        assert entry.token_id == token
        assert entry.logprob == pytest.approx(float(expected[token]), abs=1e-6)
        values, ids = expected.topk(3)
        assert [i for i, _ in entry.top] == ids.tolist()
        assert [v for _, v in entry.top] == pytest.approx(values.tolist(), abs=1e-6)
        tokens.append(token)
    assert ask(request("b", PROMPT)).logprobs is None


@pytest.mark.parametrize(
    "prompt, sampling, message",
    [
        ([], {}, "the prompt is empty"),
        ([5] * 64, {}, "the prompt has 64 tokens; with max_model_len=64 at most 63"),
        ([5, 50], {}, "prompt token id 50 is not in the vocabulary of 50"),
        ([-1], {}, "prompt token id -1"),
        ([5], {"logit_bias": {99: 1.0}}, "logit_bias: token id 99"),
        ([5], {"stop_token_ids": (50,)}, "stop_token_ids: token id 50"),
        ([5], {"n": 2}, "one request per sample"),
    ],
)
def test_a_request_that_can_never_run_becomes_an_error_completion(
    prompt: list[int], sampling: dict[str, object], message: str
) -> None:
    done = run(make_engine(), [request("bad", prompt, **sampling), request("good", PROMPT)])
    assert done["bad"].finish_reason == "error" and message in (done["bad"].error or "")
    assert done["bad"].output_token_ids == () and done["bad"].timing is not None
    assert done["good"].output_token_ids == oracle(FakeConfig(), PROMPT, 8)


def test_an_answer_ends_where_the_context_ends() -> None:
    completion = ask(request("a", [5] * 60, max_tokens=None, ignore_eos=True))
    assert (len(completion.output_token_ids), completion.finish_reason) == (4, "length")


class Broken(FakeModel):
    """Gives NaN for the logits of one request, at one position."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length

    def forward(self, batch: ForwardBatch, cache: FakeCache) -> ForwardOutput:
        output = super().forward(batch, cache)
        for row, token in enumerate(batch.logit_rows.tolist()):
            if int(batch.positions[token]) + 1 == self.length:
                output.logits[row, 4] = float("nan")
        return output


@pytest.mark.parametrize("drafts", [0, 4])
@pytest.mark.parametrize("length", [len(PROMPT), len(PROMPT) + 3])
def test_logits_that_are_not_numbers_end_that_request_alone(length: int, drafts: int) -> None:
    engine = make_engine(Broken(length), num_speculative_tokens=drafts, max_num_batched_tokens=32)
    asked = request("bad", PROMPT, temperature=1.0, seed=8, logprobs=True, ignore_eos=True)
    done = run(engine, [asked, request("good", [6, 6], max_tokens=3)])
    bad = done["bad"]
    assert bad.finish_reason == "error" and "not numbers" in (bad.error or "")
    assert len(bad.output_token_ids) == length - len(PROMPT)
    assert bad.logprobs is not None and len(bad.logprobs) == len(bad.output_token_ids)
    assert done["good"].output_token_ids == oracle(FakeConfig(), [6, 6], 3)


def test_ids_in_use_and_closed_engines_are_errors() -> None:
    engine = make_engine()
    engine.add_request(request("a", PROMPT))
    with pytest.raises(EngineError, match="'a' is already running"):
        engine.add_request(request("a", PROMPT))
    assert engine.has_unfinished() and not engine.abort("unknown")
    engine.close()
    engine.close()
    assert not engine.has_unfinished()
    for call in (engine.step, lambda: engine.add_request(request("b", PROMPT))):
        with pytest.raises(EngineError, match="closed"):
            call()


def test_times_and_counters() -> None:
    engine = make_engine(num_speculative_tokens=3, max_num_batched_tokens=32)
    before = engine.stats()
    asked = [request(str(i), [4 + i] * 10, max_tokens=12, ignore_eos=True) for i in range(6)]
    done = run(engine, asked)
    for completion in done.values():
        timing = completion.timing
        assert timing is not None
        assert timing.arrived_s <= timing.scheduled_s <= timing.first_token_s <= timing.finished_s
    stats = engine.stats()
    assert before.num_steps == 0 and before.num_blocks == stats.num_blocks == 32
    assert stats.num_prefill_tokens == 60 and stats.num_decode_tokens == 66
    assert stats.num_draft_tokens == sum(c.num_draft_tokens for c in done.values()) > 0
    assert stats.num_accepted_tokens == sum(c.num_accepted_tokens for c in done.values())
    assert stats.num_accepted_tokens == sum(stats.accepted_per_position)
    assert list(stats.accepted_per_position) == sorted(stats.accepted_per_position, reverse=True)
    # Every decode step of a request gives one token more than it accepted drafts.
    assert 0 < stats.num_accepted_tokens < stats.num_decode_tokens
    assert 0 < stats.peak_blocks <= 32 and stats.prefill_s > 0 and stats.decode_s > 0


def test_tokens_of_unfinished_and_of_dropped_answers_count() -> None:
    """A run shows its speed before the first answer is finished."""
    engine = make_engine()
    for name in "ab":
        engine.add_request(request(name, PROMPT, max_tokens=12, ignore_eos=True))
    found = [0]
    while any(length < 4 for length in engine.unfinished_lengths().values()):
        engine.step()
        found.append(engine.stats().num_decode_tokens)
    assert found[-1] == 6 and set(found) == {0, 2, 4, 6}
    engine.abort("a")
    assert engine.stats().num_decode_tokens == 6
    while engine.has_unfinished():
        engine.step()
    assert engine.stats().num_decode_tokens == 3 + 11


def test_seeds_decide_the_answer_and_nothing_else_does() -> None:
    def sampled(seeds: Sequence[int]) -> list[tuple[int, ...]]:
        asked = [
            request(str(i), PROMPT, seed=seed, temperature=1.5, max_tokens=6, ignore_eos=True)
            for i, seed in enumerate(seeds)
        ]
        done = run(make_engine(), asked)
        return [done[str(i)].output_token_ids for i in range(len(seeds))]

    first = sampled([11, 12, 2**64 - 1, 11, 0])
    assert first[0] == first[3] and len(set(first)) == 4
    assert sampled([0, 2**64 - 1, 11])[::-1] == [first[0], first[2], first[4]]


def test_occupancy_counts_every_answer_in_every_decode_step() -> None:
    engine = make_engine(max_num_seqs=2)
    run(engine, [request(str(i), [7, 8 + i], max_tokens=4, ignore_eos=True) for i in range(3)])
    stats = engine.stats()
    # Each answer takes three decode steps after the token that its prefill yields.
    assert stats.num_decode_rows == 9 and stats.num_decode_tokens == 9
    assert stats.num_decode_steps == 6
    assert stats.decode_batches == (2.0, 2.0, 2.0, 1.0, 1.0, 1.0)


def test_min_tokens_that_leave_no_token_are_named() -> None:
    every = tuple(range(FakeConfig().vocab_size))
    done = ask(request("a", PROMPT, min_tokens=3, stop_token_ids=every))
    assert done.finish_reason == "error" and done.error_kind == "invalid_value"
    assert done.error is not None and "min_tokens=3 forbids those in stop_token_ids" in done.error
