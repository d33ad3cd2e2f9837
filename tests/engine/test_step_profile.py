"""Measured step times: interpolation, files, and the decision whether to draft."""

from __future__ import annotations

from pathlib import Path

import pytest

from deepinfer.engine.draft_planner import STEPS_TO_PROBE, EarlyStopping, StaleBudget
from deepinfer.engine.step_profile import StepProfile
from deepinfer.errors import ConfigError


def make_profile(draft_s: float = 0.2, block_s: float = 1.5) -> StepProfile:
    return StepProfile(
        device="test",
        block_size=5,
        num_requests=(1, 11),
        draft_s=(draft_s, 2 * draft_s),
        single_s=(1.0, 2.0),
        block_s=(block_s, 2 * block_s),
    )


def test_times_are_interpolated_and_grow_in_proportion_beyond_the_last() -> None:
    profile = make_profile()
    assert profile.plain_step_s(6) == pytest.approx(1.5)
    assert profile.plain_step_s(22) == pytest.approx(4.0)
    assert profile.step_s(1, 0) == pytest.approx(1.2)
    assert profile.step_s(1, 5) == pytest.approx(1.7)
    assert profile.step_s(11, 11) == pytest.approx(0.4 + 2.0 + 1.0 / 5)


def test_a_saved_profile_comes_back(tmp_path: Path) -> None:
    make_profile().save(tmp_path / "profile.json")
    assert StepProfile.load(tmp_path / "profile.json") == make_profile()


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"schema": "deepinfer.step_profile/1"}', '{"schema": "other"}'],
)
def test_a_file_that_is_no_profile_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"profile\.json.*delete it"):
        StepProfile.load(path)


@pytest.mark.parametrize("planner_type", [EarlyStopping, StaleBudget])
def test_drafting_stops_where_it_does_not_pay_and_is_tried_again(
    planner_type: type[EarlyStopping] | type[StaleBudget],
) -> None:
    planner = planner_type(make_profile(draft_s=2.0, block_s=9.0))
    most, hopeless = [5, 5], [[0.1, 0.0, 0.0, 0.0, 0.0]] * 2
    for _ in range(2):
        assert planner.is_worth_drafting(most)
        planner.lengths(hopeless, most)
    decisions = [planner.is_worth_drafting(most) for _ in range(STEPS_TO_PROBE + 1)]
    assert decisions == [False] * STEPS_TO_PROBE + [True]


@pytest.mark.parametrize("planner_type", [EarlyStopping, StaleBudget])
def test_certain_drafts_that_cost_little_are_all_verified(
    planner_type: type[EarlyStopping] | type[StaleBudget],
) -> None:
    planner = planner_type(make_profile())
    for _ in range(5):
        assert planner.is_worth_drafting([5, 3])
        assert planner.lengths([[1.0] * 5] * 2, [5, 3]) == [5, 3]
    assert not planner.is_worth_drafting([0, 0])
