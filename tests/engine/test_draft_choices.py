"""No choice of drafts changes an answer: any lengths, any step times, drafting or not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from fake_model import FakeConfig, FakeModel, make_engine, oracle, request, run
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from deepinfer.engine.speculation.draft_outlook import DraftOutlook
from deepinfer.engine.speculation.draft_planner import EarlyStopping, StaleBudget
from deepinfer.engine.speculation.step_profile import StepProfile


class AnyLengths:
    """Drafts now and then, and guesses and verifies whatever ``choices`` say."""

    def __init__(self, choices: Sequence[int]) -> None:
        self.choices = list(choices)
        self.calls = 0

    def _next(self, most: int) -> int:
        self.calls += 1
        return self.choices[self.calls % len(self.choices)] % (most + 1)

    def depth(self, most: Sequence[int]) -> int:
        return self._next(5)

    def lengths(self, survival: ArrayLike, most: Sequence[int]) -> list[int]:
        depth = np.shape(survival)[1]
        return [self._next(min(depth, limit)) for limit in most]

    def look_ahead(self, most: Sequence[int]) -> None:
        pass

    def took(self, seconds: float, num_requests: int, num_drafts: int | None) -> None:
        assert seconds > 0 and num_requests > 0 and (num_drafts is None or num_drafts >= 0)


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.integers(0, 99))
def test_any_lengths_give_the_answers_of_the_oracle(choices: list[int], seed: int) -> None:
    config = FakeConfig()
    engine = make_engine(FakeModel(config), num_speculative_tokens=5, max_num_batched_tokens=24)
    assert engine._workers is not None
    engine._workers[1].planner = AnyLengths(choices)
    prompts = {str(i): [2 + seed % 40, 3 + i] * (i + 1) for i in range(5)}
    done = run(engine, [request(name, ids, max_tokens=12) for name, ids in prompts.items()])
    for name, ids in prompts.items():
        assert done[name].output_token_ids == oracle(config, ids, 12)


@settings(deadline=None, max_examples=15)
@given(st.floats(0.01, 5.0), st.floats(1.0, 9.0), st.booleans(), st.booleans())
def test_any_step_times_give_the_answers_of_the_oracle(
    draft_s: float, block_s: float, stale: bool, waits: bool
) -> None:
    config = FakeConfig()
    profile = StepProfile(device="cpu", block_size=5, num_requests=(1,), draft_s=(draft_s,),
                          first_s=(draft_s / 3,), seed_s=(0.01,), single_s=(1.0,),
                          block_s=(block_s,))  # fmt: skip
    engine = make_engine(FakeModel(config), num_speculative_tokens=5, max_num_batched_tokens=24)
    assert engine._workers is not None
    outlook = DraftOutlook(profile, config.sliding_window)
    engine._workers[1].planner = StaleBudget(outlook) if stale else EarlyStopping(outlook)
    engine._workers[1].waits_for_drafts = waits
    prompts = {str(i): [7, 3 + i] for i in range(5)}
    done = run(engine, [request(name, ids, max_tokens=20) for name, ids in prompts.items()])
    for name, ids in prompts.items():
        assert done[name].output_token_ids == oracle(config, ids, 20)


def test_no_draft_is_verified_behind_one_that_ends_the_answer() -> None:
    config = FakeConfig(vocab_size=3)
    engine = make_engine(FakeModel(config), num_speculative_tokens=5, max_num_batched_tokens=24)
    done = run(engine, [request(str(i), [2, i % 2 * 2, 2 + i % 1]) for i in range(4)])
    assert all(c.output_token_ids for c in done.values())
    stats = engine.stats()
    assert 0 < stats.num_draft_tokens < stats.num_proposed_tokens
