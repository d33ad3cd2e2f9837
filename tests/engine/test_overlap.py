"""Decode steps launched before the one before them is read: the same answers, one step later."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
from fake_constraint import Rising
from fake_model import FakeConfig, FakeModel, make_engine, oracle, request, run
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deepinfer.engine.execution.decode import DecodeWorker
from deepinfer.engine.speculation.draft_planner import VerifyAll
from deepinfer.engine.types import Completion, Request

Answer = tuple[tuple[int, ...], str, object]

prompts = st.lists(
    st.tuples(
        st.lists(st.integers(2, 9), min_size=1, max_size=20),
        st.integers(1, 14),
        st.sampled_from(
            ["", "", "", "logprobs", "penalty", "min_tokens", "sampled", "stop", "held", "gives up"]
        ),
    ),
    min_size=1,
    max_size=8,
)


def ask(number: int, prompt: list[int], max_tokens: int, kind: str) -> Request:
    fields: dict[str, object] = {
        "": {},
        "logprobs": {"logprobs": True, "top_logprobs": 2},
        "penalty": {"frequency_penalty": 0.7},
        "min_tokens": {"min_tokens": 3},
        "sampled": {"temperature": 1.3},
        "stop": {"stop_token_ids": tuple(range(5, 30))},
    }.get(kind, {})
    constraint = {"held": Rising(6), "gives up": Rising(2, 3)}.get(kind)
    asked = request(str(number), prompt, seed=number, max_tokens=max_tokens, **fields)
    return replace(asked, constraint=copy.deepcopy(constraint))


def answers(done: dict[str, Completion]) -> dict[str, Answer]:
    return {
        name: (c.output_token_ids, c.finish_reason, c.logprobs) for name, c in sorted(done.items())
    }


@settings(max_examples=60, deadline=None)
@given(prompts, st.integers(14, 40), st.booleans())
def test_answers_do_not_depend_on_it(
    asked: list[tuple[list[int], int, str]], num_blocks: int, invariant: bool
) -> None:
    """Whatever ends a request, few blocks (so that requests in flight lose theirs), any mixture of
    requests that allow it and that do not."""

    def requests() -> list[Request]:
        return [ask(number, *one) for number, one in enumerate(asked)]

    fields = {"num_blocks": num_blocks, "max_model_len": 40, "batch_invariant": invariant}
    expected = run(make_engine(overlaps_steps=False, **fields), requests())
    engine = make_engine(overlaps_steps=True, **fields)
    assert answers(run(engine, requests())) == answers(expected)
    engine.check_integrity()


class SometimesDrafts(VerifyAll):
    """Steps with and without drafts in any order."""

    def __init__(self, choices: list[int]) -> None:
        super().__init__(5)
        self.choices = itertools.cycle(choices)

    def depth(self, most: Sequence[int]) -> int:
        return next(self.choices)


@settings(max_examples=60, deadline=None)
@given(
    prompts, st.integers(14, 40), st.integers(1, 4), st.integers(1, 5), st.booleans(), st.booleans()
)
@example([([2], 1, ""), ([4, 3, 4], 4, "gives up")], 14, 1, 1, False, True)
def test_answers_do_not_depend_on_which_steps_draft(
    asked: list[tuple[list[int], int, str]],
    num_blocks: int,
    plain: int,
    depth: int,
    stops: bool,
    waits: bool,
) -> None:
    """A step with drafts waits for the one on its way, of which a request may just have ended; its
    drafts are read before they are verified, or meanwhile."""
    choices = [0] * plain + [depth]

    def requests() -> list[Request]:
        kinds = ["stop" if stops else kind for _, _, kind in asked]
        return [ask(n, *one[:2], kinds[n]) for n, one in enumerate(asked)]

    fields = {"num_blocks": num_blocks, "max_model_len": 40, "max_num_batched_tokens": 24}
    expected = run(make_engine(**fields), requests())
    engine = make_engine(num_speculative_tokens=5, **fields)
    engine._overlaps = True
    assert engine._workers is not None
    engine._workers[1].drafter.planner = SometimesDrafts(choices)
    engine._workers[1].waits_for_drafts = waits
    assert answers(run(engine, requests())) == answers(expected)
    engine.check_integrity()


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the decode worker does, in order."""
    events: list[str] = []
    for name in ("launch", "finish", "draw", "start_masks"):
        original = getattr(DecodeWorker, name)

        def spy(*arguments, name=name, original=original):  # type: ignore[no-untyped-def]
            events.append(name)
            return original(*arguments)

        monkeypatch.setattr(DecodeWorker, name, spy)
    return events


def test_the_next_step_is_launched_before_the_last_is_read(events: list[str]) -> None:
    done = run(make_engine(overlaps_steps=True), [request("a", [4, 5], max_tokens=6)])
    assert done["a"].output_token_ids == oracle(FakeConfig(), [4, 5], 6)
    step = ["launch", "finish", "start_masks", "draw"]  # its own tokens after those before it
    assert events[:11] == ["launch", "start_masks", "draw", *step, *step]
    assert events.count("launch") == events.count("finish") == 5


def test_masks_are_asked_for_before_the_model_runs(events: list[str]) -> None:
    asked = replace(request("a", [4, 5], max_tokens=3), constraint=Rising(2))
    run(make_engine(overlaps_steps=False), [asked])
    assert events == ["start_masks", "launch", "draw", "finish"] * 2


def test_an_answer_that_ended_gets_no_further_token() -> None:
    """The step after the last token was on its way already; what it drew is dropped."""
    config = FakeConfig()
    full = oracle(config, [4, 5, 6], 10)
    model = FakeModel(config)
    engine = make_engine(model, overlaps_steps=True)
    asked = request("a", [4, 5, 6], max_tokens=10, stop_token_ids=(full[3],))
    done = run(engine, [asked])
    end = full.index(full[3]) + 1
    assert done["a"].output_token_ids == full[:end] and done["a"].finish_reason == "stop"
    assert len(model.batches) == end + 1  # prefill, a step for each further token, and one too many


def test_a_request_dropped_in_flight_leaves_nothing() -> None:
    engine = make_engine(overlaps_steps=True)
    engine.add_request(request("a", [4, 5], max_tokens=9, ignore_eos=True))
    engine.add_request(request("b", [7], max_tokens=9))
    for _ in range(4):
        engine.step()
    assert engine.abort("a")
    done = run(engine, [])
    assert done["b"].output_token_ids == oracle(FakeConfig(), [7], 9)
    engine.check_integrity()


def test_steps_that_draft_are_not_overlapped(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(overlaps_steps=True, num_speculative_tokens=3, max_num_batched_tokens=32)
    done = run(engine, [request("a", [4, 5], max_tokens=6)])
    assert done["a"].output_token_ids == oracle(FakeConfig(), [4, 5], 6)
    assert engine._drawn is None
