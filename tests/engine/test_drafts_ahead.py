"""Drafts that follow a step which the host has not read yet."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from fake_model import FakeConfig, FakeModel, make_engine, oracle, request, run
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.engine.execution.decode import DecodeWorker
from deepinfer.engine.execution.decode_step import DecodeStep, StepOutput
from deepinfer.engine.execution.drafts_ahead import Drafted, accepted_ends
from deepinfer.engine.scheduling.request_state import RequestState
from deepinfer.engine.speculation.dspark import accepted_tokens


@settings(deadline=None)
@given(st.integers(1, 7), st.integers(1, 5), st.integers(0, 2**31))
def test_the_device_accepts_what_the_host_accepts(count: int, depth: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    token_ids = torch.randint(0, 2, (count, depth), generator=generator)
    lens = torch.randint(1, depth + 2, (count,), generator=generator)
    drawn = torch.randint(0, 2, (int(lens.sum()),), generator=generator)
    slots = torch.randperm(count, generator=generator)
    places = torch.arange(count).repeat_interleave(lens)
    output = StepOutput(torch.empty(0), slots[places], torch.empty(0))

    found_slots, newest, num_new = accepted_ends(token_ids, lens, output, drawn)

    assert torch.equal(found_slots, slots)
    for row, targets in enumerate(drawn.split(lens.tolist())):
        drafts = token_ids[row, : int(lens[row]) - 1].tolist()
        tokens = accepted_tokens(drafts, targets.tolist())
        assert [int(newest[row]), int(num_new[row])] == [tokens[-1], len(tokens)]


def test_a_row_without_usable_logits_leaves_a_token_that_exists() -> None:
    output = StepOutput(torch.empty(0), torch.tensor([3]), torch.empty(0))
    found = accepted_ends(torch.tensor([[7]]), torch.tensor([1]), output, torch.tensor([-1]))
    assert [part.tolist() for part in found] == [[3], [0], [1]]


def test_drafts_of_other_requests() -> None:
    """Some ended, some joined and have none; where most joined, drafting anew is worth more."""
    states: list[Any] = [SimpleNamespace(num_preemptions=i) for i in range(5)]
    drafted = Drafted(
        states=states[:3],
        num_preemptions=[0, 1, 2],
        token_ids=torch.tensor([[1], [2], [3]]),
        survival=torch.eye(3)[:, :1],
    )
    same = drafted.of(states[:3])
    assert same is not None and same[0] is drafted and all(same[1])
    other = drafted.of([states[2], states[4], states[0]])
    assert other is not None
    assert other[0].token_ids[[0, 2]].tolist() == [[3], [1]]
    assert other[0].survival[[0, 2]].tolist() == [[0.0], [1.0]]
    assert other[1] == [True, False, True]
    assert drafted.of([states[0], states[3], states[4]]) is None
    states[1].num_preemptions += 1  # and has drawn a token since
    other = drafted.of(states[:3])
    assert other is not None and other[1] == [True, False, True]


def test_a_step_that_did_not_fit_leaves_no_drafts_of_its_requests(monkeypatch: Any) -> None:
    """They are prefilled again, which draws a token: the drafts made ahead do not follow it."""
    config = FakeConfig()
    engine, worker, counted = _drafting_ahead(config, monkeypatch)
    finish, known = worker.finish, []

    def fails_once(step: Any) -> Any:
        if not known:
            assert worker.drafter.is_ahead
            known.append(counted.num_known)
            raise MemoryError
        known.append(counted.num_known)
        return finish(step)

    monkeypatch.setattr(worker, "finish", fails_once)
    prompts = {"0": [5, 3], "1": [5, 4]}
    done = run(engine, [request(n, ids, max_tokens=20) for n, ids in prompts.items()])
    assert known[1] == known[0] + 1
    for name, ids in prompts.items():
        assert done[name].output_token_ids == oracle(config, ids, 20)


class CountedDrafts:
    """``DecodeStep.draft``, counted by whether the host knew the tokens before."""

    def __init__(self, step: DecodeStep) -> None:
        self._draft = step.draft
        self.num_known = self.num_ahead = 0

    def __call__(self, states: Sequence[RequestState], depth: int, num_new: Any = None) -> Any:
        self.num_known += num_new is None
        self.num_ahead += num_new is not None
        return self._draft(states, depth, num_new)


def test_requests_that_join_and_end_have_the_answers_of_the_oracle(monkeypatch: Any) -> None:
    config = FakeConfig()
    engine, worker, counted = _drafting_ahead(config, monkeypatch)
    lengths = {str(i): 3 + 7 * i % 20 for i in range(12)}
    prompts = {name: [5, 3 + int(name)] for name in lengths}
    done = run(engine, [request(n, ids, max_tokens=lengths[n]) for n, ids in prompts.items()])
    for name, ids in prompts.items():
        assert done[name].output_token_ids == oracle(config, ids, lengths[name])
    assert counted.num_ahead > 3 * counted.num_known > 0


def _drafting_ahead(
    config: FakeConfig, monkeypatch: Any
) -> tuple[Any, DecodeWorker, CountedDrafts]:
    """An engine that drafts before it has read a step, its decode worker, and its drafts."""
    engine = make_engine(
        FakeModel(config), num_speculative_tokens=5, max_num_batched_tokens=24, max_num_seqs=4
    )
    worker = _worker(engine)
    worker.waits_for_drafts = False
    counted = CountedDrafts(worker.step)
    monkeypatch.setattr(worker.step, "draft", counted)
    return engine, worker, counted


def _worker(engine: Any) -> DecodeWorker:
    worker: DecodeWorker = engine._workers[1]
    return worker
