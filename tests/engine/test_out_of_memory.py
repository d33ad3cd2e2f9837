"""Steps that do not fit into memory: smaller ones follow, and no answer changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fake_model import FakeCache, FakeConfig, FakeModel, make_engine, oracle, request, run
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.engine.execution.batch import ForwardBatch, ForwardOutput
from deepinfer.engine.memory.out_of_memory import is_out_of_memory
from deepinfer.errors import EngineError

_CPU = "[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory: 8 bytes."
_PROMPTS = [[7, 8, 9, 10, 11, 12, 13, *range(20, 20 + length)] for length in (0, 3, 9, 17, 5, 12)]


class SmallMemory(FakeModel):
    """Writes all of a batch into the cache and then says that it does not fit."""

    def __init__(self, error: Exception, *, tokens: int = 1_000, requests: int = 1_000) -> None:
        super().__init__()
        self.error, self.tokens, self.requests = error, tokens, requests

    def forward(self, batch: ForwardBatch, cache: FakeCache) -> ForwardOutput:
        output = super().forward(batch, cache)
        is_decode = max(batch.query_lens) <= 6 and min(batch.context_lens) > 7
        if len(batch.token_ids) > self.tokens or (
            is_decode and len(batch.query_lens) > self.requests
        ):
            raise self.error
        return output


def _answers(model: FakeModel, **sizes: Any) -> tuple[dict[str, tuple[int, ...]], Any]:
    engine = make_engine(model, exact=True, **sizes)
    requests = [request(str(i), prompt) for i, prompt in enumerate(_PROMPTS)]
    done = run(engine, requests)
    assert all(completion.error is None for completion in done.values())
    return {key: completion.output_token_ids for key, completion in done.items()}, engine


_EXPECTED = {
    str(i): oracle(FakeConfig(), prompt, 8, exact=True) for i, prompt in enumerate(_PROMPTS)
}


@pytest.mark.parametrize(
    "error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory"), RuntimeError(_CPU)]
)
@pytest.mark.parametrize("drafts", [0, 2])
def test_fewer_requests_run_and_the_answers_stay(error: Exception, drafts: int) -> None:
    model = SmallMemory(error, requests=2)
    answers, engine = _answers(model, num_speculative_tokens=drafts)
    assert answers == _EXPECTED
    stats = engine.stats()
    assert stats.num_out_of_memory >= 1 and stats.most_running == 2
    assert stats.num_preemptions >= 2
    assert engine.blocks.num_free == engine.blocks.num_blocks


@pytest.mark.parametrize("requests", [1, 2, 3])
def test_a_step_that_fails_while_another_is_on_its_way(requests: int) -> None:
    model = SmallMemory(MemoryError(), requests=requests)
    answers, engine = _answers(model, overlaps_steps=True)
    assert answers == _EXPECTED
    assert engine.stats().most_running == max(requests - requests % 2, 1)


@given(tokens=st.integers(4, 16), requests=st.integers(1, 4), caching=st.booleans())
@settings(max_examples=4, deadline=None)
def test_whatever_the_memory_holds_the_answers_stay(
    tokens: int, requests: int, caching: bool
) -> None:
    model = SmallMemory(MemoryError(), tokens=tokens, requests=requests)
    answers, _ = _answers(model, enable_prefix_caching=caching)
    assert answers == _EXPECTED


def test_smaller_prompts_steps_are_tried_down_to_a_block() -> None:
    answers, engine = _answers(SmallMemory(MemoryError(), tokens=4), max_num_batched_tokens=64)
    assert answers == _EXPECTED
    assert engine.scheduler.max_tokens == 4


@pytest.mark.parametrize("limits", [{"tokens": 3}, {"requests": 0}])
def test_one_request_that_does_not_fit_ends_the_run(limits: dict[str, int]) -> None:
    engine = make_engine(SmallMemory(MemoryError("no more"), **limits))
    with pytest.raises(EngineError, match=r"a single request \(no more\)"):
        run(engine, [request("a", list(range(2, 14)))])
    engine.check_integrity()


def test_other_errors_are_not_taken_for_it() -> None:
    for error in (RuntimeError("device-side assert"), ValueError("can't allocate memory")):
        assert not is_out_of_memory(error)
        engine = make_engine(SmallMemory(error, tokens=0))
        with pytest.raises(type(error)):
            run(engine, [request("a", [7, 8])])
