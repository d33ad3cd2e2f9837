"""Measured step times: interpolation and files."""

from __future__ import annotations

from pathlib import Path

import pytest

from deepinfer.engine.execution.step_sizes import StepSize
from deepinfer.engine.speculation.graph_profile import graph_profile
from deepinfer.engine.speculation.step_profile import StepProfile
from deepinfer.errors import ConfigError


def make_profile(draft_s: float = 0.2, block_s: float = 1.5) -> StepProfile:
    return StepProfile(
        device="test",
        block_size=5,
        num_requests=(1, 11),
        draft_s=(draft_s, 2 * draft_s),
        first_s=(draft_s / 2, draft_s),
        seed_s=(0.1, 0.2),
        single_s=(1.0, 2.0),
        block_s=(block_s, 2 * block_s),
    )


def test_times_are_interpolated_and_grow_in_proportion_beyond_the_last() -> None:
    profile = make_profile()
    assert profile.plain_step_s(6) == pytest.approx(1.5)
    assert profile.plain_step_s(22) == pytest.approx(4.0)
    assert profile.drafting_s(1, 5) == pytest.approx(0.2)
    assert profile.drafting_s(11, 1) == pytest.approx(0.2)
    assert profile.drafting_s(11, 3) == pytest.approx(0.3)
    assert profile.verify_s(1, [0, 5]).tolist() == pytest.approx([1.1, 1.5])
    assert profile.verify_s(11, [0, 11]).tolist() == pytest.approx([2.2, 2.2 + 0.8 / 5])
    assert profile.catch_up_s(6, 10) == pytest.approx(1.5)


def test_a_saved_profile_comes_back(tmp_path: Path) -> None:
    make_profile().save(tmp_path / "profile.json")
    assert StepProfile.load(tmp_path / "profile.json") == make_profile()


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"schema": "deepinfer.step_profile/2"}', '{"schema": "other"}'],
)
def test_a_file_that_is_no_profile_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"profile\.json.*delete it"):
        StepProfile.load(path)


def test_graphs_give_a_profile_by_size() -> None:
    """Numbers of requests count where all their steps were timed; times never fall with size."""
    times = {
        StepSize("plain", 4): 1.0, StepSize("plain", 8): 1.5, StepSize("plain", 6): 1.2,
        StepSize("draft", 4, 1): 0.2, StepSize("draft", 4, 5): 0.4, StepSize("draft", 8, 5): 0.6,
        StepSize("verify", 4): 1.1, StepSize("verify", 8): 1.7, StepSize("verify", 24): 1.6,
        StepSize("verify", 48): 4.1,
    }  # fmt: skip
    profile = graph_profile(times, "test", 5)
    assert profile.num_requests == (4, 8)
    assert profile.drafting_s(4, 1) == 0.2 and profile.drafting_s(4, 5) == 0.4
    assert profile.drafting_s(8, 1) == 0.6, "not timed: as the whole block"
    assert profile.seed_s == pytest.approx((0.1, 0.2))
    assert profile.verify_s(4, [0, 3, 20, 44]).tolist() == pytest.approx([1.1, 1.7, 1.7, 4.1])
    assert profile.verify_s(8, 88) == pytest.approx(8.2), "beyond the largest, in proportion"
    slow = graph_profile(times | {StepSize("host", 10): 1.0}, "test", 5)
    assert slow.drafting_s(4, 1) == pytest.approx(0.6) and slow.drafting_s(8, 5) == pytest.approx(
        1.4
    )
    assert slow.plain_step_s(8) == profile.plain_step_s(8), "which the host does not hold up"
