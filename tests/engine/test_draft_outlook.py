"""The decision whether to draft: it follows times and survival, and what it costs is bounded."""

from __future__ import annotations

import dataclasses
import operator
import random
from itertools import accumulate

import pytest

from deepinfer.engine.execution.padded_sizes import padded_size, padded_sizes
from deepinfer.engine.speculation.draft_outlook import PROBE_SHARE, DraftOutlook
from deepinfer.engine.speculation.draft_planner import EarlyStopping, StaleBudget
from deepinfer.engine.speculation.step_profile import StepProfile

MOST = [5] * 10


def make_profile(draft_s: float, block_s: float, first_s: float | None = None) -> StepProfile:
    return StepProfile(
        device="test", block_size=5, num_requests=(1,), draft_s=(draft_s / 10,),
        first_s=((draft_s if first_s is None else first_s) / 10,), seed_s=(0.002,),
        single_s=(0.1,), block_s=(block_s / 10,),
    )  # fmt: skip


def padded(profile: StepProfile, num_requests: int) -> StepProfile:
    """The same where steps up to all drafts of so many requests are padded."""
    sizes = padded_sizes(num_requests * 6)
    drafts = [max(size - num_requests, 0) for size in sizes]
    size_s = profile.verify_s(num_requests, drafts).tolist()
    return dataclasses.replace(profile, sizes=sizes, size_s=tuple(size_s))


class Device:
    """Runs an outlook's choices with times and survival of its own, both made up."""

    def __init__(
        self, outlook: DraftOutlook, *, draft_s: float, block_s: float, chance: float, noise=0.0
    ) -> None:
        self.outlook = outlook
        self.planner = EarlyStopping(outlook)
        self.profile = make_profile(draft_s, block_s)
        self.survival = [chance ** (place + 1) for place in range(5)]
        self.noise = noise
        self.random = random.Random(0)
        self.missed = 0
        self.seconds = self.tokens = 0.0
        self.choices: list[bool] = []

    def step(self) -> None:
        is_drafting = self.outlook.is_worth_drafting(MOST)
        self.choices.append(is_drafting)
        seconds = self.profile.plain_step_s(len(MOST))
        drafts = None
        if is_drafting:
            lengths = self.planner.lengths([self.survival] * len(MOST), MOST)
            self.tokens += sum(sum(self.survival[:length]) for length in lengths)
            drafts = sum(lengths)
            seconds = self.profile.drafting_s(len(MOST), 5)
            seconds += float(self.profile.verify_s(len(MOST), drafts))
            seconds += self.profile.catch_up_s(len(MOST), self.missed)
        seconds *= self.random.uniform(1, 1 + self.noise)
        self.outlook.took(seconds, len(MOST), drafts)
        self.missed = 0 if is_drafting else min(self.missed + 1, 128)
        self.seconds += seconds
        self.tokens += len(MOST)

    def run(self, num_steps: int) -> list[bool]:
        for _ in range(num_steps):
            self.step()
        return self.choices[-num_steps:]

    @property
    def cost(self) -> float:
        """Times as long as the same tokens would have taken without drafts."""
        return self.seconds / (self.tokens / len(MOST) * self.profile.plain_step_s(len(MOST)))


def test_drafting_stops_where_drafts_do_not_survive() -> None:
    outlook = DraftOutlook(make_profile(0.2, 2.0), 128)
    device = Device(outlook, draft_s=0.2, block_s=2.0, chance=0.1)
    assert device.run(1) == [True], "nothing is known yet"
    assert not any(device.run(100))


def test_what_drafts_were_like_before_spares_the_first_try() -> None:
    outlook = DraftOutlook(make_profile(0.2, 2.0), 128, (0.1, 0.01, 0.0, 0.0, 0.0))
    assert not any(Device(outlook, draft_s=0.2, block_s=2.0, chance=0.1).run(100))


@pytest.mark.parametrize(("noise", "bound"), [(0.0, 1.02), (0.5, 1.04)])
@pytest.mark.parametrize("chance", [0.3, 0.6, 0.75])
@pytest.mark.parametrize("block_s", [1.5, 3.0])
def test_a_long_run_is_hardly_ever_slower_than_without_drafts(
    block_s: float, chance: float, noise: float, bound: float
) -> None:
    """Also where the profile is wrong by a third in either direction."""
    for error in (0.7, 1.4):
        typical = [chance ** (place + 1) for place in range(5)]
        outlook = DraftOutlook(make_profile(0.5, block_s * error), 128, typical)
        device = Device(outlook, draft_s=0.5, block_s=block_s, chance=chance, noise=noise)
        device.run(1500)
        assert device.cost / (1 + noise / 2) < bound


def test_probes_are_paid_from_what_was_saved_up() -> None:
    outlook = DraftOutlook(make_profile(1.0, 4.0), 128, [0.1] * 5)
    device = Device(outlook, draft_s=1.0, block_s=4.0, chance=0.1)
    choices = device.run(6000)
    assert 2 <= sum(choices) <= 200, "tried again now and then"
    assert device.cost < 1 + 2 * PROBE_SHARE


def test_drafting_comes_back_when_its_times_do() -> None:
    """Another program made drafting look slow; when it has gone, a probe shows it."""
    outlook = DraftOutlook(make_profile(0.2, 1.5), 128, [0.9, 0.8, 0.7, 0.6, 0.5])
    slow = Device(outlook, draft_s=3.0, block_s=9.0, chance=0.9)
    assert any(slow.run(200)[:50])
    assert not any(slow.choices[-50:])
    assert all(Device(outlook, draft_s=0.2, block_s=1.5, chance=0.9).run(4000)[-10:])


def test_a_slower_machine_slows_both_kinds_and_changes_nothing() -> None:
    outlook = DraftOutlook(make_profile(0.5, 3.0), 128, [0.5, 0.3, 0.1, 0.0, 0.0])
    Device(outlook, draft_s=0.5, block_s=3.0, chance=0.5).run(300)
    slow = Device(outlook, draft_s=0.5, block_s=3.0, chance=0.5)
    slow.profile = StepProfile(
        device="test", block_size=5, num_requests=(1,), draft_s=(0.1,), first_s=(0.1,),
        seed_s=(0.004,), single_s=(0.2,), block_s=(0.6,),
    )  # fmt: skip
    assert sum(slow.run(300)) <= 10


def test_an_outlook_near_break_even_does_not_flicker() -> None:
    outlook = DraftOutlook(make_profile(0.5, 2.0), 128, [0.7, 0.5, 0.34, 0.24, 0.17])
    choices = Device(outlook, draft_s=0.5, block_s=2.0, chance=0.72, noise=0.2).run(2000)
    assert sum(a != b for a, b in zip(choices, choices[1:], strict=False)) < 100


@pytest.mark.parametrize("planner_type", [EarlyStopping, StaleBudget])
def test_certain_drafts_that_cost_little_are_all_verified(
    planner_type: type[EarlyStopping] | type[StaleBudget],
) -> None:
    planner = planner_type(DraftOutlook(make_profile(0.2, 1.5), 128))
    for _ in range(5):
        assert planner.depth([5, 3]) == 5
        assert planner.lengths([[1.0] * 5] * 2, [5, 3]) == [5, 3]
    assert planner.depth([0, 0]) == 0


def stale_step(planner: StaleBudget, survival: list[list[float]]) -> int:
    """Drafts verified of requests that could have five."""
    depth = planner.depth([5] * len(survival))
    assert depth
    return sum(planner.lengths([row[:depth] for row in survival], [5] * len(survival)))


def test_a_stale_budget_follows_two_steps_later() -> None:
    planner = StaleBudget(DraftOutlook(make_profile(0.0, 3.0), 128, [0.9] * 5))
    hopeful, hopeless = [[0.9] * 5] * 2, [[0.01] * 5] * 2
    steps = (hopeful, hopeless, hopeful, hopeful, hopeful)
    sizes = [stale_step(planner, survival) for survival in steps]
    assert sizes[:3] == [10, 10, 10] and sizes[3] < 10 and sizes[4] == 10


@pytest.mark.parametrize("num_requests", [1, 16, 60, 200])
def test_a_budget_fills_the_padded_size(num_requests: int) -> None:
    """A draft that pads a step less costs nothing: the next larger budget needs a larger size."""
    generator = random.Random(num_requests)
    survival = [
        list(accumulate((generator.uniform(0.5, 1) for _ in range(5)), operator.mul))
        for _ in range(num_requests)
    ]
    profile = padded(make_profile(0.1, 1.8), num_requests)
    planner = StaleBudget(DraftOutlook(profile, 128, [0.9, 0.8, 0.7, 0.6, 0.5]))
    tokens = [num_requests + stale_step(planner, survival) for _ in range(4)]
    for count in tokens:
        assert count == 6 * num_requests or padded_size(count + 1) > padded_size(count)


def test_what_was_found_ahead_is_what_would_be_found_later() -> None:
    """And is not taken for other requests."""
    survival = [[0.9 - 0.01 * row] * 5 for row in range(8)]
    planners = [
        StaleBudget(DraftOutlook(padded(make_profile(0.3, 2.0, 0.1), 8), 128)) for _ in range(2)
    ]
    for limits in ([5] * 8, [5] * 8, [5] * 8, [2] * 8, [5] * 8):
        depths = [planner.depth(limits) for planner in planners]
        assert depths[0] == depths[1]
        lengths = [p.lengths([row[: depths[0]] for row in survival], limits) for p in planners]
        assert lengths[0] == lengths[1]
        planners[0].look_ahead(limits)


def test_padded_steps_take_the_time_of_their_size() -> None:
    profile = padded(make_profile(0.5, 3.0), 60)
    assert profile.verify_s(60, [1, 4, 5]).tolist() == [profile.size_s[profile.sizes.index(n)]
                                                        for n in (64, 64, 96)]  # fmt: skip
    assert profile.plain_step_s(60) == pytest.approx(6.4), "64 requests, in proportion"


def test_drafts_that_are_dear_and_rarely_verified_are_not_guessed() -> None:
    """Guessing one costs 0.1 of a step, each further one as much again; most fall at the second."""
    survival = [[0.9, 0.2, 0.1, 0.05, 0.02]] * 10
    planner = StaleBudget(DraftOutlook(make_profile(0.5, 1.5, 0.1), 128, survival[0]))
    for _ in range(4):
        assert planner.depth(MOST) == 1
        assert planner.lengths([row[:1] for row in survival], MOST) == [1] * 10


def test_a_chance_that_was_not_seen_again_follows_those_before_it() -> None:
    """Of blocks that were cut short, the rest is thought to fare as it did when there was one."""
    outlook = DraftOutlook(make_profile(0.5, 1.5), 128, [0.8, 0.6, 0.3, 0.2, 0.1])
    whole = outlook.note([[0.4, 0.3]])
    assert whole.shape == (1, 5)
    assert whole[0].tolist() == pytest.approx([0.4, 0.3, 0.15, 0.1, 0.05])
