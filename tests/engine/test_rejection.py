"""Verification by rejection has the distribution of plain sampling."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from fake_model import FakeConfig, FakeModel, make_engine, next_logits, request, run
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from deepinfer.engine.config import EngineConfig
from deepinfer.engine.execution import decode
from deepinfer.engine.execution.batch import DraftOutput
from deepinfer.errors import ConfigError
from deepinfer.kernels.dspark.verify_reference import drawn_probs, verify_drafts_reference
from deepinfer.kernels.sampling import exponential_noise, sample

VOCAB = 6
TRIALS = 1500


def chi_square(counts: Tensor, probs: Tensor) -> tuple[float, float]:
    """The statistic, and what it stays below in all but about one case in 100,000."""
    expected = probs * counts.sum()
    used = expected > 0
    assert not counts[~used].any()
    statistic = float(((counts[used] - expected[used]) ** 2 / expected[used]).sum())
    freedom = max(int(used.sum()) - 1, 1)
    # Wilson and Hilferty's approximation at 4.26 standard deviations.
    limit = freedom * (1 - 2 / (9 * freedom) + 4.26 * (2 / (9 * freedom)) ** 0.5) ** 3
    return statistic, limit


def filters(
    rows: int, temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0
) -> tuple[Tensor, ...]:
    """Temperature, top_p, top_k, min_p."""
    return (
        torch.full((rows,), temperature),
        torch.full((rows,), top_p),
        torch.full((rows,), top_k),
        torch.zeros(rows),
    )


@pytest.mark.parametrize("same", [True, False], ids=["good drafts", "bad drafts"])
def test_each_token_of_a_block_has_the_targets_distribution(same: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    target = torch.randn(3, VOCAB, generator=generator)
    draft = target[:2] if same else torch.randn(2, VOCAB, generator=generator)
    counts = torch.zeros(3, VOCAB)
    first, lens = torch.tensor([0]), torch.tensor([2])
    for trial in range(TRIALS):
        seeds, positions = torch.full((1,), trial * 7919 + 3), torch.arange(10, 13)
        noise = exponential_noise(seeds.expand(2), positions[:2], VOCAB)
        drafts = (draft.softmax(-1) / noise).argmax(-1)
        verified = verify_drafts_reference(
            target, draft[None], drafts[None], first, lens, *filters(1), seeds, positions
        )
        num_kept, last = verified[0].tolist()
        for place, token in enumerate([*drafts[:num_kept].tolist(), last]):
            counts[place, token] += 1
    for place in range(3):
        statistic, limit = chi_square(counts[place], target[place].softmax(-1))
        assert statistic < limit
    if same:
        assert counts[2].sum() == TRIALS


@settings(deadline=None, max_examples=40)
@given(st.floats(0.3, 2.0), st.floats(0.2, 1.0), st.integers(0, VOCAB), st.integers(0, 1000))
def test_probabilities_are_those_that_tokens_are_drawn_with(
    temperature: float, top_p: float, top_k: int, seed: int
) -> None:
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)).expand(800, VOCAB)
    row, seeds = filters(800, temperature, top_p, top_k), torch.arange(800)
    probs = drawn_probs(logits, *row)
    torch.testing.assert_close(probs.sum(-1), torch.ones(800))
    drawn = sample(logits, *row, seeds, seeds + seed)
    statistic, limit = chi_square(torch.bincount(drawn, minlength=VOCAB).float(), probs[0])
    assert statistic < 1.3 * limit


def test_unusable_logits_have_no_probabilities() -> None:
    assert not drawn_probs(torch.tensor([[0.0, float("nan"), 1.0]]), *filters(1)).any()


def test_the_engine_draws_second_tokens_as_without_drafts() -> None:
    config = FakeConfig(vocab_size=VOCAB, eos_token_id=VOCAB - 1)
    engine = make_engine(FakeModel(config), num_speculative_tokens=3, rejection_sampling=True,
                         max_num_batched_tokens=64, max_num_seqs=8)  # fmt: skip
    prompt, count = [2, 3], 800
    done = run(
        engine,
        [
            request(str(i), prompt, seed=i * 31 + 1, temperature=1.0, max_tokens=3, ignore_eos=True)
            for i in range(count)
        ],
        max_steps=20000,
    )
    firsts = torch.tensor([c.output_token_ids[0] for c in done.values()])
    first = int(firsts.bincount().argmax())
    seconds = torch.tensor(
        [c.output_token_ids[1] for c in done.values() if c.output_token_ids[0] == first]
    )
    probs = next_logits(config, [*prompt, first]).softmax(-1)
    statistic, limit = chi_square(torch.bincount(seconds, minlength=VOCAB).float(), probs)
    assert statistic < limit
    assert 0 < engine.stats().num_accepted_tokens < engine.stats().num_draft_tokens


def test_the_least_temperature_and_share_leave_the_likeliest() -> None:
    """Both are 0 as f32, where they would mean something else, or nothing."""
    config = FakeConfig(vocab_size=VOCAB, eos_token_id=VOCAB - 1)
    engine = make_engine(FakeModel(config), num_speculative_tokens=3, rejection_sampling=True)
    asked = ({"temperature": 0.0}, {"temperature": 1e-50}, {"temperature": 1.0, "top_p": 1e-50})
    done = run(
        engine,
        [
            request(f"{i} {seed}", [2, 3], seed=seed, max_tokens=20, ignore_eos=True, **params)
            for i, params in enumerate(asked)
            for seed in range(3)
        ],
    )
    assert len({c.output_token_ids for c in done.values()}) == 1
    assert engine.stats().num_draft_tokens


def test_damaged_drafts_end_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """The draft stages' logits are no numbers from some place on, the model's are; -1, which stands
    for no token, is not verified."""

    class Damaged(FakeModel):
        def draft(self, *given: Any, **named: Any) -> DraftOutput:
            found = super().draft(*given, **named)
            assert found.logits is not None
            found.token_ids[:, 1:], found.logits[:, 1:] = -1, math.nan
            return found

    def verify(target: Tensor, draft: Tensor, ids: Tensor, *rest: Tensor) -> Tensor:
        is_verified = torch.arange(ids.shape[1]) < rest[1][:, None]
        assert bool((ids[is_verified] >= 0).all())
        return verify_drafts_reference(target, draft, ids, *rest)

    monkeypatch.setattr(decode, "verify_drafts", verify)
    config = FakeConfig(vocab_size=VOCAB, eos_token_id=VOCAB - 1)
    engine = make_engine(Damaged(config), num_speculative_tokens=3, rejection_sampling=True)
    params = {"temperature": 1.0, "max_tokens": 20, "ignore_eos": True}
    asked = [request(str(seed), [2, 3], seed=seed, **params) for seed in range(9)]
    for answer in run(engine, asked).values():
        assert answer.finish_reason == "length" and min(answer.output_token_ids) >= 0
    assert engine.stats().num_accepted_tokens


def test_rejection_contradicts_batch_invariance() -> None:
    with pytest.raises(ConfigError, match="rejection_sampling"):
        EngineConfig(rejection_sampling=True, batch_invariant=True)


def test_a_draft_of_no_usable_logits_is_not_kept() -> None:
    """It is -1, which would stand for the last token; the target's own token takes its place."""
    target, place = torch.randn(2, VOCAB), torch.tensor([0])
    for damaged in (math.nan, -math.inf):
        draft, drafts = torch.full((1, 1, VOCAB), damaged), torch.tensor([[-1]])
        for seed in range(20):
            verified = verify_drafts_reference(
                target, draft, drafts, place, place + 1, *filters(1), torch.tensor([seed]),
                torch.tensor([5, 6]),
            )  # fmt: skip
            assert verified[0, 0] == 0 and verified[0, 1] >= 0
