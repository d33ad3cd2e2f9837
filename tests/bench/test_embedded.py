"""The engine's rows, measured on the embedded model with the smallest plan."""

from __future__ import annotations

import pytest

from deepinfer import OfflineEngine
from deepinfer.bench.ceilings import cpu_profile
from deepinfer.bench.embedded import EnginePlan, measure_engine
from deepinfer.bench.results import Ceiling


def _engine(num_drafts: int | None) -> OfflineEngine:
    return OfflineEngine(
        num_speculative_tokens=num_drafts, max_num_seqs=2, enable_prefix_caching=False
    )


def test_rows_say_what_the_engine_counted() -> None:
    plan = EnginePlan(
        requests=(2,), drafts=(0, None, 1), num_tokens=5, prompt_words=(20,), num_rounds=2
    )
    ceilings = [
        Ceiling(name="copy", value=1e10, unit="B/s"),
        Ceiling(name="product", value=1e11, unit="FLOP/s"),
    ]
    heard: list[str] = []
    rows = list(
        measure_engine(plan, _engine, tick=heard.append, profile=cpu_profile(ceilings, 1e10))
    )
    plain, drafting, one, prompt = rows
    assert len(heard) == 3 * 4 and heard[0] == "round 0 of 2: 2 requests, no drafts"
    assert plain.num_tokens == 2 and plain.accepted_length == 1 and plain.num_drafts == 0
    assert drafting.accepted_length is not None and drafting.accepted_length >= 1
    assert one.name == "2 requests, 1 drafts" and 0 < one.num_drafts <= 1
    assert prompt.num_tokens == prompt.context > 20
    for row in rows:
        assert len(row.step_s) == 2 and min(row.step_s) > 0
        assert row.tokens_per_s == pytest.approx(row.num_tokens / row.local_s)
        assert row.share_of_overlap_limit is not None and 0 < row.share_of_overlap_limit < 1
