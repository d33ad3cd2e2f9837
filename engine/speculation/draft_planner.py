"""Decides in every decode step whether to draft at all, and how many drafts of each request count.

``VerifyAll`` has a fixed length.  The two others ask ``DraftOutlook`` whether to draft.
``EarlyStopping`` then looks at this step's confidences, so the host waits for them; ``StaleBudget``
fixes the size of the step from confidences two drafting steps old, as pipelined devices need it.
No choice changes an answer: what is accepted is what the model itself draws.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from deepinfer.engine.execution.ladder import ladder_size

from .calibration import Calibration
from .draft_outlook import DraftOutlook
from .step_profile import StepProfile
from .verify_lengths import StepSeconds, best_budget, early_stopping_lengths, top_lengths

STALE_STEPS = 2


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


class EarlyStopping:
    """Verifies as many drafts as this step's own confidences promise to be worth their time."""

    def __init__(self, outlook: DraftOutlook) -> None:
        self.outlook = outlook

    def is_worth_drafting(self, most: Sequence[int]) -> bool:
        return self.outlook.is_worth_drafting(most)

    def lengths(self, survival: Sequence[Sequence[float]], most: Sequence[int]) -> list[int]:
        self.outlook.note(survival)
        step_s = draft_step_s(self.outlook.profile, len(most))
        return early_stopping_lengths(survival, most, step_s)

    def took(self, seconds: float, num_requests: int, num_drafts: int | None) -> None:
        self.outlook.took(seconds, num_requests, num_drafts)


class StaleBudget:
    """The number of drafts in all comes from past steps, their places from this one's."""

    def __init__(self, outlook: DraftOutlook) -> None:
        self.outlook = outlook
        self._past: deque[Sequence[Sequence[float]]] = deque(maxlen=STALE_STEPS)

    def is_worth_drafting(self, most: Sequence[int]) -> bool:
        is_worth_it = self.outlook.is_worth_drafting(most)
        if not is_worth_it:
            self._past.clear()
        return is_worth_it

    def lengths(self, survival: Sequence[Sequence[float]], most: Sequence[int]) -> list[int]:
        is_known = len(self._past) == STALE_STEPS
        known = self._past[0] if is_known else [self.outlook.survival.tolist()]
        expected = [known[row % len(known)] for row in range(len(most))]
        budget = best_budget(expected, most, padded_step_s(self.outlook.profile, len(most)))
        self._past.append(survival)
        self.outlook.note(survival)
        return top_lengths(survival, most, budget)

    def took(self, seconds: float, num_requests: int, num_drafts: int | None) -> None:
        self.outlook.took(seconds, num_requests, num_drafts)


def draft_step_s(profile: StepProfile, num_requests: int) -> StepSeconds:
    """Seconds of a step of ``num_requests`` by the number of drafts it verifies."""
    base_s, per_draft_s = profile.draft_step_s(num_requests)
    return lambda num_drafts: base_s + per_draft_s * num_drafts


def padded_step_s(profile: StepProfile, num_requests: int) -> StepSeconds:
    """The same where steps are padded to sizes of a ladder: drafts that fill one cost nothing."""
    base_s, per_draft_s = profile.draft_step_s(num_requests)
    drafts = num_requests * profile.block_size
    smallest = ladder_size(num_requests)
    per_token_s = per_draft_s * drafts / (ladder_size(num_requests + drafts) - smallest)
    return lambda n: base_s + per_token_s * (ladder_size(num_requests + n) - smallest)


def make_planner(
    profile: StepProfile | None, device: str, window: int, calibration: Calibration | None
) -> DraftPlanner:
    """A fixed length without a profile; else what suits the device."""
    if profile is None:
        return VerifyAll()
    typical = calibration.typical_survival if calibration else ()
    outlook = DraftOutlook(profile, window, typical)
    return EarlyStopping(outlook) if device == "cpu" else StaleBudget(outlook)
