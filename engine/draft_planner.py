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
# So many steps without drafts, then one with them shows whether they have become worth it.
STEPS_TO_PROBE = 64
STALE_STEPS = 2


class DraftPlanner(Protocol):
    """What the decode worker asks.  ``most`` has the limit of each request."""

    def is_worth_drafting(self, most: Sequence[int]) -> bool:
        """Whether to draft in this step; asked once a step, before ``lengths``."""
        ...

    def lengths(self, survival: Sequence[Sequence[float]], most: Sequence[int]) -> list[int]:
        """Drafts to verify for each request, given each draft's survival (rows falling)."""
        ...


class VerifyAll:
    """Draft whenever possible and verify all there may be."""

    def is_worth_drafting(self, most: Sequence[int]) -> bool:
        return any(most)

    def lengths(self, survival: Sequence[Sequence[float]], most: Sequence[int]) -> list[int]:
        return [min(limit, len(row)) for row, limit in zip(survival, most, strict=True)]


class PastSurvival:
    """The total budget of drafts, from what was expected ``STALE_STEPS`` drafting steps ago."""

    def __init__(self, profile: StepProfile) -> None:
        self._profile = profile
        self._past: deque[Sequence[Sequence[float]]] = deque(maxlen=STALE_STEPS)
        self._num_idle_steps = 0

    def budget(self, most: Sequence[int]) -> int:
        """Drafts that the step should verify in all; 0 is a step without drafting.

        Requests of which nothing is known, and all of them at the start, count as certain.
        """
        count, possible = len(most), sum(most)
        if not possible:
            return 0
        if len(self._past) < STALE_STEPS or self._num_idle_steps >= STEPS_TO_PROBE:
            self._num_idle_steps = 0
            return possible
        known = self._past[0]
        survival = [known[row % len(known)] for row in range(count)]
        step_s = draft_step_s(self._profile, count)
        budget = best_budget(survival, most, step_s)
        expected = count + sum(
            sum(row[:length])
            for row, length in zip(survival, top_lengths(survival, most, budget), strict=True)
        )
        gain = expected / step_s(budget) * self._profile.plain_step_s(count) / count
        if gain >= LEAST_GAIN:
            self._num_idle_steps = 0
            return budget
        self._num_idle_steps += 1
        return 0

    def note(self, survival: Sequence[Sequence[float]]) -> None:
        self._past.append(survival)


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


def draft_step_s(profile: StepProfile, num_requests: int) -> StepSeconds:
    """Seconds of a step of ``num_requests`` by the number of drafts it verifies."""
    return lambda num_drafts: profile.step_s(num_requests, num_drafts)


def make_planner(profile: StepProfile | None, device: str) -> DraftPlanner:
    """A fixed length without a profile; else what suits the device."""
    if profile is None:
        return VerifyAll()
    return EarlyStopping(profile) if device == "cpu" else StaleBudget(profile)
