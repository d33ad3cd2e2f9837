"""The plan's checks, and the table of limits."""

from __future__ import annotations

import dataclasses

import pytest

from deepinfer.bench.limits import limit_rows, request_bytes, requests_that_fit
from deepinfer.bench.plan import LAUNCH_REPLAY, BenchPlan, padded_experts
from deepinfer.engine.model.config import ModelConfig
from deepinfer.errors import ConfigError

FLASH = ModelConfig.flash()


def test_one_row_for_each_size_of_each_phase() -> None:
    plan = BenchPlan(requests=(8, 256), tokens=(4_096,), decode_ranks=(8, 64), prefill_ranks=(4,))
    rows = limit_rows(plan, FLASH)
    assert [(row.phase, row.size, row.ranks) for row in rows] == [
        ("decode", 8, 8),
        ("decode", 256, 8),
        ("decode", 8, 64),
        ("decode", 256, 64),
        ("prefill", 4_096, 4),
    ]
    small, large, *_ = rows
    assert large.limit.tokens_per_s > small.limit.tokens_per_s
    assert small.tokens_per_s_user is not None and large.tokens_per_s_user is not None
    assert small.tokens_per_s_user > large.tokens_per_s_user
    assert all(row.limit.overlap_s <= row.limit.serial_s for row in rows)


def test_replaying_more_costs_more() -> None:
    plan = BenchPlan(phases=("prefill",), tokens=(65_536,))
    window = limit_rows(plan, FLASH)[0]
    launch = limit_rows(dataclasses.replace(plan, replay_tokens=LAUNCH_REPLAY), FLASH)[0]
    assert launch.limit.local_s > window.limit.local_s


def test_experts_as_fp8_take_their_room() -> None:
    """32 GB more on a rank of eight, read in every step of many requests."""
    plan = BenchPlan(phases=("decode",), requests=(256,), drafts=(5,))
    [stored] = limit_rows(plan, FLASH)
    [recast] = limit_rows(dataclasses.replace(plan, expert_weights="fp8"), FLASH)
    assert (stored.experts_as_fp8, recast.experts_as_fp8) == (False, True)
    more = recast.weight_bytes - stored.weight_bytes
    assert more == pytest.approx(32e9, rel=0.03)
    read = recast.limit.work.weight_bytes - stored.limit.work.weight_bytes
    assert read == pytest.approx(more, rel=0.01)
    assert recast.fitting(141e9) == stored.fitting(141e9 - more) > 256
    assert recast.fitting(141e9) == requests_that_fit(FLASH, 131_072, 8, 141e9, experts_as_fp8=True)


def test_memory_decides_how_many_requests_fit() -> None:
    """At 131,072 tokens a request takes about 119.6 MB, 256 of them 30.6 GB."""
    assert 256 * request_bytes(FLASH, 131_072) == pytest.approx(30.7e9, rel=0.01)
    one_rank = limit_rows(BenchPlan(phases=("decode",), decode_ranks=(1,)), FLASH)
    assert not any(row.fits for row in one_rank)
    assert requests_that_fit(FLASH, 131_072, 1, 141e9) == 0
    most = requests_that_fit(FLASH, 131_072, 8, 141e9)
    rows = limit_rows(BenchPlan(requests=(most, most + 1)), FLASH)
    assert [row.fits for row in rows[:2]] == [True, False]


def test_ranks_that_do_not_divide_the_experts_are_padded() -> None:
    assert [padded_experts(384, ranks) for ranks in (1, 8, 7, 64, 384)] == [384, 48, 55, 6, 1]


@pytest.mark.parametrize(
    "change, message",
    [
        ({"context": 2_000_000}, "context=2000000: the model's is 1048576"),
        ({"drafts": (9,)}, "drafts=9: the model drafts at most 5"),
        ({"decode_ranks": (385,)}, "ep=385: the model has 384 experts"),
        ({"decode_ranks": (12,), "link": "rdma400"}, "12 ranks over rdma400"),
    ],
)
def test_what_the_model_cannot_do(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        limit_rows(BenchPlan(**change), FLASH)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"requests": ()}, "requests=.*at least one"),
        ({"requests": (0,)}, "requests="),
        ({"acceptance": 1.5}, "acceptance=1.5: expected 0 to 1"),
        ({"device_profile": "h20"}, "did you mean h200"),
        ({"link": "rdma40"}, "did you mean rdma400"),
        ({"num_steps": 0}, "num_steps=0"),
    ],
)
def test_values_out_of_range(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BenchPlan(**change)


def test_lengths_are_taken_in_turn() -> None:
    plan = BenchPlan(lengths=(100, 300))
    assert plan.contexts(3) == [100, 300, 100] and plan.longest == 300
    assert plan.prompts(350) == [100, 300] and plan.prompts(401) == [100, 300, 100]
    equal = BenchPlan(context=1_000)
    assert equal.contexts(2) == [1_000] * 2
    assert equal.prompts(400) == [400] and equal.prompts(2_000) == [1_000] * 2
    rows = limit_rows(dataclasses.replace(plan, requests=(4,), tokens=(400,)), FLASH)
    assert [row.context for row in rows] == [200, 200]


def test_ranks_of_one_node_exchange_over_its_fabric() -> None:
    """Eight ranks behind an adapter each never leave their node; 64 do."""
    plan = BenchPlan(link="rdma400")
    assert plan.exchange(8).name == "h200 fabric" and plan.exchange(64).name == "rdma400"
    rows = limit_rows(BenchPlan(phases=("decode",), decode_ranks=(8, 64), link="rdma400"), FLASH)
    assert all(row.limit.link_s > 0 for row in rows)
