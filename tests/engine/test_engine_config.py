from __future__ import annotations

import pytest
from fake_model import FakeCache, FakeConfig, FakeModel, make_engine, request, run

from deepinfer.engine.config import EngineConfig
from deepinfer.engine.engine import LLMEngine
from deepinfer.errors import ConfigError


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"max_num_seqs": 0}, "max_num_seqs=0: expected a whole number, 1 to "),
        ({"block_size": 3}, "block_size=3: expected an even number"),
        ({"num_blocks": 0}, "num_blocks=0"),
        ({"num_blocks": 2**70}, "num_blocks=1180591620717411303424: expected a whole number"),
        ({"max_num_seqs": 1.5}, "max_num_seqs=1.5: expected a whole number"),
        ({"max_num_seqs": None}, "max_num_seqs=None: expected a whole number"),
        ({"max_num_seqs": True}, "max_num_seqs=True: expected a whole number"),
        ({"max_model_len": "8k"}, "max_model_len='8k': expected a whole number"),
        ({"cache_memory_gib": float("inf")}, "cache_memory_gib=inf: expected a number"),
        ({"exact": "no"}, "exact='no': expected True or False"),
        ({"cache_memory_gib": 0.0}, "cache_memory_gib=0.0: expected a number above 0"),
        ({"max_model_len": 1}, "max_model_len=1: expected a whole number, 2 to "),
        ({"num_speculative_tokens": -1}, "num_speculative_tokens=-1"),
        ({"num_snapshots": -1}, "num_snapshots=-1"),
        (
            {"max_num_seqs": 8, "max_num_batched_tokens": 47, "num_speculative_tokens": 5},
            "max_num_batched_tokens=47: expected at least 48",
        ),
    ],
)
def test_bad_values_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineConfig(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("value, expected", [("1", True), ("Yes", True), ("0", False), ("", False)])
def test_environment_switches_batch_invariance_on(value: str, expected: bool) -> None:
    environment = {"DEEPINFER_BATCH_INVARIANT": value}
    assert EngineConfig().with_environment(environment).batch_invariant is expected
    assert EngineConfig(batch_invariant=True).with_environment(environment).batch_invariant
    with pytest.raises(ConfigError, match="expected 1 or 0"):
        EngineConfig().with_environment({"DEEPINFER_BATCH_INVARIANT": "maybe"})


def test_environment_is_read_when_an_engine_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPINFER_BATCH_INVARIANT", "1")
    engine = make_engine()
    monkeypatch.setenv("DEEPINFER_BATCH_INVARIANT", "not read again")
    assert engine.config.batch_invariant
    run(engine, [request("a", [5] * 9)])


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"max_model_len": 500}, "more than the model's context of 256"),
        ({"max_model_len": 64, "num_blocks": 10}, "hold 40 tokens, fewer than max_model_len=64"),
        (
            {"num_speculative_tokens": 6, "max_num_batched_tokens": 40},
            "drafts 5 tokens at a time",
        ),
    ],
)
def test_sizes_that_do_not_fit_the_model_are_refused(
    fields: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_engine(**fields)


def test_drafts_need_draft_stages() -> None:
    model = FakeModel(FakeConfig(num_nextn_predict_layers=0))
    with pytest.raises(ConfigError, match="no draft stages"):
        make_engine(model, num_speculative_tokens=2)


def test_context_is_what_the_blocks_hold_unless_it_is_asked_for() -> None:
    model = FakeModel()
    config = EngineConfig(num_blocks=10, block_size=4, max_num_seqs=2)
    cache = FakeCache(model.config, 10, 4, 2)
    assert LLMEngine(model, config, cache).max_model_len == 40  # type: ignore[arg-type]
