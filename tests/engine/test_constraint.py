"""Constrained requests: tokens as defined with drafts on or off, others untouched, errors alone."""

from __future__ import annotations

import copy
import threading
from dataclasses import replace

import pytest
import torch
from fake_constraint import Falling, Rising
from fake_model import FakeConfig, make_engine, next_logits, request, run
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.engine.sampling.constraint import AnswerConstraint
from deepinfer.engine.sampling.step_masks import StepMasks
from deepinfer.kernels.sampling import sample

EOS = FakeConfig().eos_token_id
VOCAB_SIZE = FakeConfig().vocab_size


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


@settings(max_examples=20, deadline=None)
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


def mask(logits, rules, counts, drafts=None) -> torch.Tensor:
    """A masked copy of the logits."""
    held = [None if rule is None else AnswerConstraint(rule) for rule in rules]
    found = logits.clone()
    with StepMasks(held, counts, drafts, logits.shape[1], logits.device) as masks:
        masks.apply(found)
    return found


def test_without_constraints_nothing_is_masked():
    logits = torch.randn(3, VOCAB_SIZE)
    assert not StepMasks([None, None], [1, 2], None, VOCAB_SIZE, "cpu")
    assert torch.equal(mask(logits, [None, None], [1, 2]), logits)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.sampled_from([None, Rising(1), Rising(9), Falling(1)]), min_size=1, max_size=5),
    st.data(),
)
def test_masks_reach_exactly_their_rows(kinds, data):
    """Rows of other requests keep their bits; in constrained ones only the allowed tokens do."""
    rules = [copy.deepcopy(kind) for kind in kinds]
    drafts = [
        data.draw(st.lists(st.integers(6, 9), max_size=3)) if rule is not None else [1, 2]
        for rule in rules
    ]
    drafts = [
        ids if rule is None else ids[: rule.num_allowed(ids)]
        for rule, ids in zip(rules, drafts, strict=True)
    ]
    counts = [1 + len(ids) for ids in drafts]
    logits = torch.randn(sum(counts), VOCAB_SIZE)
    pieces = torch.split(mask(logits, rules, counts, drafts), counts)
    for rule, ids, new, old in zip(rules, drafts, pieces, torch.split(logits, counts), strict=True):
        for place, (row, old_row) in enumerate(zip(new, old, strict=True)):
            if rule is None:
                assert torch.equal(row, old_row)
                continue
            rule.tokens = list(ids[:place])
            kept = set(torch.isfinite(row).nonzero()[:, 0].tolist())
            assert kept == rule.allowed()
            assert torch.equal(row[sorted(kept)], old_row[sorted(kept)])


def test_log_probabilities_are_those_before_the_mask():
    free = request("a", [7, 8], max_tokens=1, logprobs=True, top_logprobs=3)
    held = replace(free, request_id="b", constraint=Falling(1))
    found = run(make_engine(max_num_batched_tokens=32), [free, held])
    assert found["a"].logprobs[0].top == found["b"].logprobs[0].top
    assert found["a"].output_token_ids != found["b"].output_token_ids


def test_a_step_that_fails_waits_for_its_masks():
    """The constraints of a step that is undone are free again when the next one asks them."""
    started, release = threading.Event(), threading.Event()

    class Slow(Rising):
        @staticmethod
        def fill_masks(rules, drafts, out):
            started.set()
            release.wait(120)
            return [None] * len(rules)

    slow = AnswerConstraint(Slow(1))
    timer = threading.Timer(0.05, release.set)
    with pytest.raises(MemoryError), StepMasks([slow], [1], None, VOCAB_SIZE, "cpu"):
        assert started.wait(120)
        timer.start()
        raise MemoryError
    assert release.is_set()
