"""Counters of several ranks as those of one engine."""

from __future__ import annotations

from dataclasses import fields

import pytest

from deepinfer.engine.types import EngineStats
from deepinfer.ranks.merged_stats import merge_stats


def test_counts_add_up_and_times_are_the_longest() -> None:
    one = EngineStats(
        num_steps=3, num_decode_tokens=10, prefill_s=1.0, decode_s=5.0, peak_blocks=4,
        accepted_per_position=(3, 1), verify_lengths=(2.0, 4.0), calibration_error=0.1,
        expert_imbalance_before=1.5, expert_imbalance_after=1.1, num_expert_moves=3,
    )  # fmt: skip
    other = EngineStats(
        num_steps=2, num_decode_tokens=7, prefill_s=2.0, decode_s=4.0, peak_blocks=5,
        accepted_per_position=(2, 1, 1), verify_lengths=(4.0,), calibration_error=None,
        expert_imbalance_before=1.5, expert_imbalance_after=1.1, num_expert_moves=3,
    )  # fmt: skip
    both = merge_stats([one, other])
    assert (both.num_steps, both.num_decode_tokens, both.peak_blocks) == (5, 17, 9)
    assert (both.prefill_s, both.decode_s) == (2.0, 5.0)
    assert both.accepted_per_position == (5, 2, 1) and both.verify_lengths == (3.0, 4.0)
    assert both.calibration_error == 0.1
    assert (both.expert_imbalance_before, both.expert_imbalance_after) == (1.5, 1.1)
    assert both.num_expert_moves == 3  # ranks place experts together


def test_every_counter_can_be_merged() -> None:
    """A new field of another kind has to say here how it is merged."""
    empty = merge_stats([EngineStats(), EngineStats()])
    for field in fields(EngineStats):
        value = getattr(empty, field.name)
        assert value in (0, (), None), field.name
    assert merge_stats([EngineStats(num_steps=1)]).num_steps == pytest.approx(1)
