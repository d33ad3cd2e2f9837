"""Decides in every decode step whether to draft at all, and how many drafts of each request count.

``VerifyAll`` has a fixed length.  The two others weigh survival against measured step times:
``EarlyStopping`` looks at this step's confidences, so the host waits for them; ``StaleBudget``
fixes the size of the step from confidences two drafting steps old, as pipelined devices need it.
No choice changes an answer: what is accepted is what the model itself draws.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from .step_profile import StepProfile
from .verify_lengths import StepSeconds, best_budget, early_stopping_lengths, top_lengths

# Drafting must promise this much; below it, noise in the times would decide.
LEAST_GAIN = 1.05
# So many steps of one kind, then one of the other shows whether that has become better.
STEPS_TO_PROBE = 64
STALE_STEPS = 2
# Weight of a step's time among those before it.
NEWEST = 0.2


class DraftPlanner(Protocol):
    """What the decode worker asks.  ``most`` has the limit of each request."""

    def is_worth_drafting(self, most: Sequence[int]) -> bool:
        """Whether to draft in this step; asked once a step, before ``lengths``."""
        ...

    def lengths(self, survival: Sequence[Sequence[float]], most: Sequence[int]) -> list[int]:
        """Drafts to verify for each request, given each draft's survival (rows falling)."""
        ...

    def took(self, seconds: float, num_requests: int, num_drafts: int | None) -> None:
        """How long the step took; ``num_drafts`` verified in all, None without drafting."""
        ...


class VerifyAll:
    """Draft whenever possible and verify all there may be."""

    def is_worth_drafting(self, most: Sequence[int]) -> bool:
        return any(most)

    def lengths(self, survival: Sequence[Sequence[float]], most: Sequence[int]) -> list[int]:
        return [min(limit, len(row)) for row, limit in zip(survival, most, strict=True)]

    def took(self, seconds: float, num_requests: int, num_drafts: int | None) -> None:
        pass


class Pace:
    """How steps of one kind compare with the profile, from those that were run: contexts grow, and
    other programs come and go."""

    def __init__(self) -> None:
        self._slowness = 1.0
        self._num_steps = 0

    def note(self, seconds: float, expected_s: float) -> None:
        self._num_steps += 1
        weight = max(NEWEST, 1 / self._num_steps)
        self._slowness += weight * (seconds / expected_s - self._slowness)

    def slowness(self, other: Pace) -> float:
        """Times as long as expected; like the other kind as long as none of this one was run."""
        return self._slowness if self._num_steps else other._slowness


class PastSurvival:
    """The total budget of drafts, from what was expected ``STALE_STEPS`` drafting steps ago."""

    def __init__(self, profile: StepProfile) -> None:
        self._profile = profile
        self._past: deque[Sequence[Sequence[float]]] = deque(maxlen=STALE_STEPS)
        self._is_drafting = True
        self._num_steps = 0
        self._plain, self._drafting = Pace(), Pace()

    def budget(self, most: Sequence[int]) -> int:
        """Drafts that the step should verify in all; 0 is a step without drafting.

        Requests of which nothing is known, and all of them at the start, count as certain.
        """
        possible = sum(most)
        if not possible or len(self._past) < STALE_STEPS:
            return possible
        budget, gain = self._best(most)
        is_worth_it = gain >= LEAST_GAIN
        self._num_steps = self._num_steps + 1 if is_worth_it == self._is_drafting else 0
        self._is_drafting = is_worth_it
        if self._num_steps >= STEPS_TO_PROBE:
            self._num_steps = 0
            return 0 if is_worth_it else possible
        return budget if is_worth_it else 0

    def note(self, survival: Sequence[Sequence[float]]) -> None:
        self._past.append(survival)

    def took(self, seconds: float, num_requests: int, num_drafts: int | None) -> None:
        if num_drafts is None:
            self._plain.note(seconds, self._profile.plain_step_s(num_requests))
        else:
            self._drafting.note(seconds, self._profile.step_s(num_requests, num_drafts))

    def _best(self, most: Sequence[int]) -> tuple[int, float]:
        """The best budget, and how many times the tokens per second of no drafting it promises."""
        known, count = self._past[0], len(most)
        survival = [known[row % len(known)] for row in range(count)]
        step_s = draft_step_s(self._profile, count)
        budget = best_budget(survival, most, step_s)
        lengths = top_lengths(survival, most, budget)
        gained = sum(sum(row[:n]) for row, n in zip(survival, lengths, strict=True))
        slower = step_s(budget) * self._drafting.slowness(self._plain)
        plain = self._profile.plain_step_s(count) * self._plain.slowness(self._drafting)
        return budget, (1 + gained / count) * plain / slower


class EarlyStopping:
    """Whether to draft comes from past steps, the lengths from this step's own confidences."""

    def __init__(self, profile: StepProfile) -> None:
        self._profile = profile
        self._past = PastSurvival(profile)

    def is_worth_drafting(self, most: Sequence[int]) -> bool:
        return self._past.budget(most) > 0

    def lengths(self, survival: Sequence[Sequence[float]], most: Sequence[int]) -> list[int]:
        self._past.note(survival)
        return early_stopping_lengths(survival, most, draft_step_s(self._profile, len(most)))

    def took(self, seconds: float, num_requests: int, num_drafts: int | None) -> None:
        self._past.took(seconds, num_requests, num_drafts)


class StaleBudget:
    """The number of drafts in all comes from past steps, their places from this one's."""

    def __init__(self, profile: StepProfile) -> None:
        self._past = PastSurvival(profile)
        self._budget = 0

    def is_worth_drafting(self, most: Sequence[int]) -> bool:
        self._budget = self._past.budget(most)
        return self._budget > 0

    def lengths(self, survival: Sequence[Sequence[float]], most: Sequence[int]) -> list[int]:
        self._past.note(survival)
        return top_lengths(survival, most, self._budget)

    def took(self, seconds: float, num_requests: int, num_drafts: int | None) -> None:
        self._past.took(seconds, num_requests, num_drafts)


def draft_step_s(profile: StepProfile, num_requests: int) -> StepSeconds:
    """Seconds of a step of ``num_requests`` by the number of drafts it verifies."""
    return lambda num_drafts: profile.step_s(num_requests, num_drafts)


def make_planner(profile: StepProfile | None, device: str) -> DraftPlanner:
    """A fixed length without a profile; else what suits the device."""
    if profile is None:
        return VerifyAll()
    return EarlyStopping(profile) if device == "cpu" else StaleBudget(profile)
