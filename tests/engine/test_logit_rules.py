"""Rules of many requests at once: each row as its own request alone would have it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from deepinfer.engine.execution.staging import send
from deepinfer.engine.sampling import seen_tokens
from deepinfer.engine.sampling.logit_rules import LogitRules
from deepinfer.engine.sampling.sampler import Sampler
from deepinfer.engine.sampling.step_masks import StepMasks
from deepinfer.engine.scheduling.intake import detached_state
from deepinfer.engine.scheduling.request_state import RequestState
from deepinfer.engine.types import SamplingParams
from deepinfer.kernels.testing import assert_bitwise_equal

VOCAB, EOS = 50, 1
ASKED = [
    SamplingParams(temperature=0, presence_penalty=0.5, repetition_penalty=1.5),
    SamplingParams(temperature=0),
    SamplingParams(temperature=0, frequency_penalty=-0.75, logit_bias={3: 4.0, 9: -100.0}),
    SamplingParams(temperature=0, min_tokens=3, logit_bias={EOS: 5.0}),
]


def asked_state(slot: int, sampling: SamplingParams, prompt: list[int]) -> RequestState:
    state = detached_state(slot, prompt)
    state.request = replace(state.request, sampling=sampling)
    state.slot, state.num_prompt_tokens = slot, len(prompt)
    state.rules = LogitRules.of(sampling, (EOS,))
    return state


def adjusted(
    sampler: Sampler, logits: Tensor, states: list[RequestState], drafts: list[list[int]]
) -> Tensor:
    counts = [1 + len(ids) for ids in drafts]
    nothing = [None] * len(states)
    with StepMasks(nothing, counts, drafts, VOCAB, logits.device) as masks:
        return sampler.adjust(logits.clone(), states, counts, drafts, masks)


def by_definition(logits: Tensor, state: RequestState, drafts: list[int]) -> Tensor:
    """One number after the other."""
    asked, rows = state.request.sampling, logits.clone()
    for place, row in enumerate(rows):
        prompt = state.token_ids[: state.num_prompt_tokens]
        answer = state.token_ids[state.num_prompt_tokens :] + drafts[:place]
        for token in range(VOCAB):
            value, times = row[token].clone(), answer.count(token)
            if times or token in prompt:
                factor = asked.repetition_penalty
                value = value / factor if value > 0 else value * factor
            value = value - asked.frequency_penalty * times - asked.presence_penalty * bool(times)
            row[token] = value + asked.logit_bias.get(token, 0.0)
            if token == EOS and len(answer) < asked.min_tokens:
                row[token] = -torch.inf
    return rows


def steps(device: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Logits by definition and as found, of several steps: tokens come, a slot goes to another
    request, requests change places."""
    generator = torch.Generator().manual_seed(0)
    sampler = Sampler(5, device)
    states = [asked_state(slot, asked, [2, 3, 3, 40 + slot]) for slot, asked in enumerate(ASKED)]
    for number in range(6):
        if number == 3:
            states[0] = asked_state(0, ASKED[2], [5])
        if number == 4:
            states[2].slot = 4  # after preemption
            states.reverse()
        drafts = [[3, 3, 7][: (place + number) % 4] for place in range(len(states))]
        counts = [1 + len(ids) for ids in drafts]
        logits = torch.randn(sum(counts), VOCAB, generator=generator)
        own = zip(torch.split(logits, counts), states, drafts, strict=True)
        expected = torch.cat([by_definition(*rows) for rows in own])
        yield expected, adjusted(sampler, logits.to(device), states, drafts).cpu()
        for place, state in enumerate(states):
            state.token_ids += [3, 7, place][: 1 + (place + number) % 3]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_many_steps_equal_the_definition(device: str) -> None:
    for expected, found in steps(device):
        assert_bitwise_equal(found, expected)


def test_raw_logits_stay_for_log_probabilities() -> None:
    asked = SamplingParams(temperature=0, presence_penalty=1.0, logprobs=True)
    state = asked_state(0, asked, [4])
    state.token_ids.append(4)
    logits = torch.randn(1, VOCAB)
    before = logits.clone()
    with StepMasks([None], [1], None, VOCAB, logits.device) as masks:
        found = Sampler(1, "cpu").adjust(logits, [state], [1], None, masks)
    assert_bitwise_equal(logits, before)
    assert float(found[0, 4]) == pytest.approx(float(before[0, 4]) - 1.0)


def test_memory_is_taken_when_it_is_needed() -> None:
    sampler, plain = Sampler(2, "cpu"), asked_state(0, ASKED[1], [4])
    logits = torch.randn(1, VOCAB)
    with StepMasks([None], [1], None, VOCAB, logits.device) as masks:
        assert sampler.adjust(logits, [plain], [1], None, masks) is logits
    assert sampler._seen._marks is None


def test_a_step_without_memory_is_counted_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever of the writes fails: at a request's first step, and at a later one."""
    for fails_at in range(1, 6):
        sampler, state = Sampler(1, "cpu"), asked_state(0, ASKED[0], [2, 3])
        for tokens in ([7], [7, 9]):
            state.token_ids += tokens
            calls = iter(range(1, 100))

            def failing(*given: object, fails_at: int = fails_at, calls: Iterator[int] = calls):
                if next(calls) == fails_at:
                    raise torch.OutOfMemoryError
                return send(*given)

            logits = torch.randn(1, VOCAB)
            with monkeypatch.context() as patch, contextlib.suppress(torch.OutOfMemoryError):
                patch.setattr(seen_tokens, "send", failing)
                adjusted(sampler, logits, [state], [[]])
            found = adjusted(sampler, logits, [state], [[]])
            assert_bitwise_equal(found, by_definition(logits, state, []))
