"""Drafts on the embedded model: the same answers with and without, and what a profile file does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deepinfer import OfflineEngine, SamplingParams
from deepinfer.outputs import RequestOutput

SUBJECTS = ("fox", "clock", "baker", "lighthouse", "kite", "river", "grandmother", "snail")
QUESTIONS = (
    "Tell me a story about a {}.",
    "Write a poem about a {}.",
    "What is {} + 17?",
    "Write a JSON object about a {}.",
)


def prompts(count: int) -> list[str]:
    """Different prompts of a few kinds."""
    return [
        QUESTIONS[i % 4].format(SUBJECTS[i // 4 % 8] if i % 4 != 2 else i) + " Please." * (i // 32)
        for i in range(count)
    ]


def answers(count: int, temperature: float, max_tokens: int, **settings: object) -> list[object]:
    with OfflineEngine(batch_invariant=True, **settings) as engine:  # type: ignore[arg-type]
        params = SamplingParams(temperature=temperature, max_tokens=max_tokens, logprobs=True)
        return [_answer(output) for output in engine.generate(prompts(count), params)]


def _answer(output: RequestOutput) -> object:
    assert output.error is None
    sample = output.samples[0]
    return sample.token_ids, sample.finish_reason, sample.logprobs


@pytest.mark.parametrize("temperature", [pytest.param(0.0, marks=pytest.mark.slow), 1.0])
def test_drafts_change_no_token_and_no_logprob(temperature: float) -> None:
    plain = answers(4, temperature, 18, num_speculative_tokens=0)
    assert answers(4, temperature, 18, num_speculative_tokens=5, max_num_seqs=3) == plain
    assert answers(4, temperature, 18) == plain


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafts_change_no_token_of_500_answers(temperature: float) -> None:
    plain = answers(500, temperature, 64, num_speculative_tokens=0)
    assert answers(500, temperature, 64, num_speculative_tokens=5, max_num_seqs=16) == plain


def test_step_times_are_kept_and_measured_again_on_another_device(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    with OfflineEngine(max_num_seqs=2, profile_path=path) as engine:
        assert engine.notes == {}
    first = path.read_text()
    with OfflineEngine(max_num_seqs=2, profile_path=path) as engine:
        assert engine.notes == {}
    assert path.read_text() == first
    path.write_text(json.dumps(json.loads(first) | {"device": "abacus"}))
    with OfflineEngine(max_num_seqs=2, profile_path=path) as engine:
        assert "abacus" in engine.notes["speculation_profile"]
    assert json.loads(path.read_text())["device"] == json.loads(first)["device"]


def test_rejection_answers_and_counts_its_drafts() -> None:
    with OfflineEngine(num_speculative_tokens=5, rejection_sampling=True) as engine:
        outputs = engine.generate(prompts(3), SamplingParams(max_tokens=24, logprobs=True))
        stats = engine.stats()
    for output in outputs:
        sample = output.samples[0]
        assert sample.logprobs is not None
        assert tuple(entry.token_id for entry in sample.logprobs) == sample.token_ids
    assert 0 < stats.num_accepted_tokens <= stats.num_draft_tokens <= stats.num_proposed_tokens
    assert stats.calibration_error is not None
