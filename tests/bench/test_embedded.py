"""The engine's rows, measured on the embedded model with the smallest plan."""

from __future__ import annotations

import sys
import time

import pytest
import torch

from deepinfer import OfflineEngine
from deepinfer.bench.ceilings import cpu_profile
from deepinfer.bench.embedded import EnginePlan, measure_engine
from deepinfer.bench.python_parts import OTHER, python_parts
from deepinfer.bench.results import Ceiling
from deepinfer.kernels.norm import rms_norm


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
    assert len(heard) == 3 * 4 + 4 and heard[0] == "round 0 of 2: 2 requests, no drafts"
    assert plain.num_tokens == 2 and plain.accepted_length == 1 and plain.num_drafts == 0
    assert drafting.accepted_length is not None and drafting.accepted_length >= 1
    assert one.name == "2 requests, 1 draft" and 0 < one.num_drafts <= 1
    assert prompt.num_tokens == prompt.context > 20
    for row in rows:
        assert {"attention", "gemm", "norm", OTHER} < set(row.parts_s)
        assert sum(row.parts_s.values()) == pytest.approx(row.local_s)
        assert min(row.parts_s.values()) > 0
        assert len(row.step_s) == 2 and min(row.step_s) > 0
        assert row.tokens_per_s == pytest.approx(row.num_tokens / row.local_s)
        assert row.share_of_overlap_limit is not None and 0 < row.share_of_overlap_limit < 1


@pytest.mark.parametrize(
    ("last", "num_rounds", "num_split"),
    [
        ("round 0 of 2: prompt of 20 words", [], 0),
        ("round 2 of 2: prompt of 20 words", [2, 1], 0),
        ("where the time goes: prompt of 20 words", [2, 2], 1),
    ],
)
def test_rows_that_were_measured_come_before_an_interrupt(
    last: str, num_rounds: list[int], num_split: int
) -> None:
    """A bench that was stopped while it asked where the time goes had lost all of its rows."""
    plan = EnginePlan(requests=(1,), drafts=(0,), num_tokens=2, prompt_words=(20,), num_rounds=2)

    def interrupt(what: str) -> None:
        if what == last:
            raise KeyboardInterrupt

    rows = []
    with pytest.raises(KeyboardInterrupt):
        rows.extend(measure_engine(plan, _engine, tick=interrupt))
    assert [len(row.step_s) for row in rows] == num_rounds
    assert sum(bool(row.parts_s) for row in rows) == num_split


def test_time_goes_to_the_innermost_family_inside_of_the_function() -> None:
    before = sys.getprofile()
    x, weight = torch.randn(64, 64), torch.ones(64)
    norms = 0

    def step(count: int, fails: bool = False) -> None:
        nonlocal norms
        for _ in range(count):
            rms_norm(x, weight, 1e-6)
            norms += 1
        time.sleep(0.05)
        if fails:
            raise ValueError

    rms_norm(x, weight, 1e-6)
    started = time.perf_counter()
    with python_parts(step) as parts:
        rms_norm(x, weight, 1e-6)  # outside of it
        step(0)
        assert set(parts) == {OTHER}
        step(20)
        with pytest.raises(ValueError):
            step(0, fails=True)
        time.sleep(0.05)
    assert set(parts) == {OTHER, "norm"} and norms == 20
    assert parts[OTHER] >= 0.15 and sum(parts.values()) < time.perf_counter() - started - 0.05
    assert sys.getprofile() is before
