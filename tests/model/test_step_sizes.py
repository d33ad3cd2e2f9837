"""Steps of every size before the first request: all are met there, and no answer changes."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import pytest

from deepinfer.engine.config import EngineConfig
from deepinfer.engine.engine import LLMEngine
from deepinfer.engine.execution import step_sizes
from deepinfer.engine.execution.decode_step import DecodeStep
from deepinfer.engine.execution.graphs import GraphCache, Result
from deepinfer.engine.execution.padded_sizes import padded_size, padded_sizes
from deepinfer.engine.execution.step_sizes import StepSize, time_first_steps, time_sizes
from deepinfer.engine.model.model import Model
from deepinfer.engine.types import Request, SamplingParams

NUM_SEQS, NUM_DRAFTS = 3, 2
ONE_MODEL = pytest.mark.parametrize("model", ["tiny-a"], indirect=True)


@pytest.fixture(autouse=True)
def _time_for_all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine would leave some of them out."""
    monkeypatch.setattr(step_sizes, "BUDGET_S", 1e6)


class Noted(GraphCache):
    """Sizes as for graphs, but functions run every time; notes for what a graph would be made."""

    def __init__(self) -> None:
        super().__init__("cpu")
        self.is_enabled = True
        self.keys: list[Hashable] = []

    def run(self, key: Hashable, function: Callable[[], Result], turn: object = None) -> Result:
        self.keys.append(key)
        return function()


def make_engine(model: Model, num_drafts: int = NUM_DRAFTS) -> tuple[LLMEngine, DecodeStep, Noted]:
    config = EngineConfig(
        max_num_seqs=NUM_SEQS, block_size=8, num_blocks=40, num_speculative_tokens=num_drafts
    )
    engine, graphs = LLMEngine(model, config), Noted()
    assert engine._workers is not None
    step = engine._workers[1].step
    step.graphs = graphs
    return engine, step, graphs


def answers(engine: LLMEngine) -> dict[str, tuple[int, ...]]:
    for number in range(4):
        prompt = tuple(range(5, 12 + 3 * number))
        sampling = SamplingParams(temperature=number % 2, max_tokens=6, ignore_eos=True)
        engine.add_request(
            Request(request_id=str(number), prompt_token_ids=prompt, sampling=sampling, seed=number)
        )
    done = {}
    while engine.has_unfinished():
        done |= {found.request_id: found.output_token_ids for found in engine.step()}
    return done


@ONE_MODEL
def test_an_engine_that_met_all_sizes_answers_the_same_and_meets_no_new_one(model: Model) -> None:
    fresh, _, _ = make_engine(model)
    engine, step, graphs = make_engine(model)
    times = time_first_steps(step, chooses_drafts=True)
    assert {size.kind for size in times} == {"plain", "verify", "draft", "host"}
    assert min(seconds for size, seconds in times.items() if size.kind != "host") > 0
    known = set(graphs.keys)
    assert len(known) == len(times) - 1
    assert answers(engine) == answers(fresh)
    assert set(graphs.keys) == known


@ONE_MODEL
def test_sizes_are_the_padded_ones(model: Model) -> None:
    _, step, _ = make_engine(model)
    sizes = list(time_first_steps(step, chooses_drafts=False))
    assert {s.size for s in sizes if s.kind == "verify"} == set(padded_sizes(NUM_SEQS * 3))
    assert {s for s in sizes if s.kind == "draft"} == {
        StepSize("draft", count, NUM_DRAFTS) for count in padded_sizes(NUM_SEQS)
    }
    _, plain, _ = make_engine(model, 0)
    assert {s.kind for s in time_first_steps(plain, chooses_drafts=False)} == {"plain"}


@ONE_MODEL
def test_the_steps_of_given_requests(model: Model) -> None:
    """As a benchmark wants them: as many requests in every step, and its own clock."""
    engine, step, _ = make_engine(model)
    engine.add_request(
        Request(
            request_id="r",
            prompt_token_ids=(5, 6, 7),
            sampling=SamplingParams(max_tokens=4, ignore_eos=True),
            seed=0,
        )
    )
    engine.step()
    [state] = engine.scheduler.holding
    times = time_sizes(step, [state], (1, 2), least=1, repeats=2)
    assert {(s.kind, s.size) for s in times} == {
        ("plain", 1), ("draft", 1), ("host", 1), *(("verify", count) for count in (1, 2, 3))
    }  # fmt: skip
    ends = time_sizes(step, [state], (1,), budget_s=-1.0)
    assert {(s.kind, s.size) for s in ends} == {
        ("plain", 1), ("draft", 1), ("verify", 1), ("verify", 3)
    }  # fmt: skip


@pytest.mark.parametrize(("count", "size"), [(1, 1), (5, 6), (100, 128), (257, 320), (1537, 1792)])
def test_padded_sizes(count: int, size: int) -> None:
    assert padded_size(count) == size
    assert padded_sizes(count)[-1] == size and padded_sizes(count) == tuple(
        sorted(set(padded_sizes(count)))
    )
