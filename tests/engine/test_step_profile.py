"""Measured step times: interpolation and files."""

from __future__ import annotations

from pathlib import Path

import pytest

from deepinfer.engine.speculation.step_profile import StepProfile
from deepinfer.errors import ConfigError


def make_profile(draft_s: float = 0.2, block_s: float = 1.5) -> StepProfile:
    return StepProfile(
        device="test",
        block_size=5,
        num_requests=(1, 11),
        draft_s=(draft_s, 2 * draft_s),
        seed_s=(0.1, 0.2),
        single_s=(1.0, 2.0),
        block_s=(block_s, 2 * block_s),
    )


def test_times_are_interpolated_and_grow_in_proportion_beyond_the_last() -> None:
    profile = make_profile()
    assert profile.plain_step_s(6) == pytest.approx(1.5)
    assert profile.plain_step_s(22) == pytest.approx(4.0)
    assert profile.draft_step_s(1) == pytest.approx((1.3, 0.4 / 5))
    assert profile.draft_step_s(11) == pytest.approx((2.6, 0.8 / 55))
    assert profile.catch_up_s(6, 10) == pytest.approx(1.5)


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
