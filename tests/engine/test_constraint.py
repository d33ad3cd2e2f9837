"""Constrained requests: tokens as defined with drafts on or off, others untouched, errors alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from fake_model import FakeConfig, make_engine, next_logits, request, run
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.engine.sampling.constraint import AnswerConstraint, apply_constraints
from deepinfer.errors import RowError
from deepinfer.kernels.sampling import sample

EOS = FakeConfig().eos_token_id
VOCAB_SIZE = FakeConfig().vocab_size


class Rising:
    """Each token is larger than the one before by at most ``step``; the end is allowed from the
    third token on, and nothing else once 40 is reached.  ``limit``: tokens until it gives up."""

    def __init__(self, step: int, limit: int = 100) -> None:
        self.step = step
        self.limit = limit
        self.tokens: list[int] = []

    def allowed(self) -> set[int]:
        if len(self.tokens) >= self.limit:
            raise RowError("constraint_too_complex", "too long for me")
        last = self.tokens[-1] if self.tokens else 5
        if last == EOS:
            return set()
        following = set(range(last + 1, min(last + self.step, 40) + 1))
        return following | ({EOS} if len(self.tokens) >= 3 or not following else set())

    @property
    def is_finished(self) -> bool:
        return bool(self.tokens) and self.tokens[-1] in (EOS, 40)

    def num_allowed(self, draft_token_ids: Sequence[int]) -> int:
        return len(self._walk(draft_token_ids)) - 1

    def forced_tokens(self) -> list[int]:
        forced = 0
        while len(allowed := self._walk(range(0))[0]) == 1 and EOS not in allowed:
            self.tokens += allowed
            forced += 1
        found = self.tokens[len(self.tokens) - forced :]
        del self.tokens[len(self.tokens) - forced :]
        return found

    def fill_draft_masks(self, draft_token_ids: Sequence[int], out: np.ndarray) -> int:
        sets = self._walk(draft_token_ids)
        for row, allowed in zip(out, sets, strict=False):
            row[:] = 0
            for token_id in allowed:
                row[token_id // 32] |= np.uint32(1 << token_id % 32)
        return len(sets) - 1

    def push(self, token_id: int) -> None:
        assert token_id in self.allowed(), "the engine took a token that is not allowed"
        self.tokens.append(token_id)

    def _walk(self, draft_token_ids: Sequence[int]) -> list[set[int]]:
        """What is allowed here and after each draft, up to one that is not allowed."""
        before, sets = len(self.tokens), []
        try:
            for token_id in draft_token_ids:
                sets.append(self.allowed())
                if token_id not in sets[-1]:
                    return sets
                self.tokens.append(token_id)
            return [*sets, self.allowed()]
        finally:
            del self.tokens[before:]


def reference_answer(asked, step: int, max_tokens: int) -> list[int]:
    """One token at a time from the masked logits."""
    config = FakeConfig()
    tokens = list(asked.prompt_token_ids)
    start = max(0, len(tokens) - config.sliding_window)
    rule = Rising(step)
    while len(rule.tokens) < max_tokens and not rule.is_finished:
        logits = next_logits(config, tokens, 0, start)
        barred = [i for i in range(config.vocab_size) if i not in rule.allowed()]
        logits[barred] = -torch.inf
        values = (asked.sampling.temperature, 1.0, 0, 0.0, asked.seed, len(tokens))
        tokens.append(int(sample(logits[None], *(torch.tensor([value]) for value in values))))
        rule.push(tokens[-1])
    return rule.tokens


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    prompt=st.lists(st.integers(2, 49), min_size=1, max_size=9),
    temperature=st.sampled_from([0.0, 1.5]),
    step=st.sampled_from([1, 2, 6]),
    max_tokens=st.sampled_from([1, 4, 40]),
    drafts=st.sampled_from([0, 1, 5]),
    ignore_eos=st.booleans(),
    num_blocks=st.sampled_from([18, 48]),
)
def test_answers_equal_their_definition_with_drafts_on_or_off(
    seed, prompt, temperature, step, max_tokens, drafts, ignore_eos, num_blocks
):
    """With 18 blocks some requests are preempted: the constraint stands where it stood."""
    values = {"seed": seed, "temperature": temperature, "max_tokens": max_tokens}
    asked = request("a", prompt, ignore_eos=ignore_eos, **values)
    free = [request(str(i), [3 + i] * (i + 2), max_tokens=40, temperature=1.0) for i in range(3)]
    sizes = {"num_blocks": num_blocks, "max_num_batched_tokens": 32}

    def engine():
        return make_engine(num_speculative_tokens=drafts, **sizes)

    held = replace(asked, constraint=Rising(step))
    found = run(engine(), [free[0], held, *free[1:]])
    expected = reference_answer(asked, step, max_tokens)
    assert list(found["a"].output_token_ids) == expected
    is_complete = expected[-1] in (EOS, 40)
    assert found["a"].finish_reason == ("stop" if is_complete else "length")
    assert found["a"].stop_reason is None
    alone = run(engine(), [asked, *free])
    for other in free:
        assert found[other.request_id].output_token_ids == alone[other.request_id].output_token_ids


def test_forced_tokens_are_drafts_that_are_all_accepted():
    asked = replace(request("a", [7, 8], max_tokens=30), constraint=Rising(1))
    engine = make_engine(num_speculative_tokens=5, max_num_batched_tokens=32)
    completion = run(engine, [asked])["a"]
    assert completion.output_token_ids[:3] == (6, 7, 8)
    assert completion.num_accepted_tokens >= 2
    first, *_ = engine.stats().accepted_per_position
    assert first >= 1


@pytest.mark.parametrize("drafts", [0, 5])
@pytest.mark.parametrize("limit", [0, 1, 3])
def test_a_constraint_that_gives_up_ends_its_request_alone(drafts, limit):
    free = [request(str(i), [3 + i] * 3, max_tokens=9) for i in range(3)]
    asked = replace(request("a", [7, 8], max_tokens=30), constraint=Rising(2, limit))
    engine = make_engine(num_speculative_tokens=drafts, max_num_batched_tokens=32)
    found = run(engine, [*free, asked])
    assert found["a"].finish_reason == "error"
    assert (found["a"].error_kind, found["a"].error) == (
        "constraint_too_complex",
        "too long for me",
    )
    assert len(found["a"].output_token_ids) <= limit
    assert all(found[other.request_id].finish_reason != "error" for other in free)


def test_without_constraints_the_logits_are_the_same_tensor():
    logits = torch.randn(3, VOCAB_SIZE)
    assert apply_constraints(logits, [None, None], [1, 2]) is logits


@settings(max_examples=50, deadline=None)
@given(st.lists(st.one_of(st.none(), st.integers(1, 9)), min_size=1, max_size=5), st.data())
def test_masks_reach_exactly_their_rows(steps, data):
    """Rows of other requests keep their bits; in constrained ones only the allowed tokens do."""
    rules = [None if step is None else Rising(step) for step in steps]
    drafts = [
        data.draw(st.lists(st.integers(6, 9), max_size=3)) if step is not None else [1, 2]
        for step in steps
    ]
    drafts = [
        ids if rule is None else ids[: rule.num_allowed(ids)]
        for rule, ids in zip(rules, drafts, strict=True)
    ]
    counts = [1 + len(ids) for ids in drafts]
    logits = torch.randn(sum(counts), VOCAB_SIZE)
    before = logits.clone()
    held = [None if rule is None else AnswerConstraint(rule) for rule in rules]
    pieces = torch.split(apply_constraints(logits, held, counts, drafts), counts)
    assert torch.equal(logits, before)
    for rule, ids, new, old in zip(rules, drafts, pieces, torch.split(before, counts), strict=True):
        for place, (row, old_row) in enumerate(zip(new, old, strict=True)):
            if rule is None:
                assert torch.equal(row, old_row)
                continue
            rule.tokens = list(ids[:place])
            kept = set(torch.isfinite(row).nonzero()[:, 0].tolist())
            assert kept == rule.allowed()
            assert torch.equal(row[sorted(kept)], old_row[sorted(kept)])


@pytest.mark.gpu
def test_masks_on_a_gpu_equal_those_on_the_host():
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    logits = torch.randn(4, VOCAB_SIZE)
    on_host, on_gpu = (
        apply_constraints(
            logits.to(device), [None, AnswerConstraint(Rising(6))], [1, 3], [[], [7, 9]]
        )
        for device in ("cpu", "cuda")
    )
    assert torch.equal(on_host, on_gpu.cpu())
