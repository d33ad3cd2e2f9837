"""Decides in every decode step how many tokens to draft, if any, and which drafts to verify.

``VerifyAll`` has a fixed length.  The two others ask ``DraftOutlook`` whether to draft.
``EarlyStopping`` then uses this step's confidences, for which the host waits; ``StaleBudget`` fixes
the size of the step by confidences from two drafting steps ago, so that an asynchronous device
never waits.  No choice changes an answer: only tokens that the model itself samples are accepted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from .calibration import Calibration
from .draft_outlook import DraftOutlook
from .step_profile import StepProfile
from .verify_lengths import Floats, StepSeconds, best_budget, early_stopping_lengths, top_lengths

STALE_STEPS = 2


class DraftPlanner(Protocol):
    """What the decode worker needs.  ``most``: the limit of drafts for each request."""

    def depth(self, most: Sequence[int]) -> int:
        """Drafts to propose for every request, 0 for none; called once per step, before
        ``lengths``."""
        ...

    def lengths(self, survival: ArrayLike, most: Sequence[int]) -> list[int]:
        """Drafts to verify for each request, given each draft's survival [R, depth]."""
        ...

    def budget(self, most: Sequence[int], depth: int) -> int | None:
        """Total number of drafts to verify, the most likely of ``depth`` per request, if it does
        not depend on this step's survival; then ``note`` is called instead of ``lengths``."""
        ...

    def note(self, survival: ArrayLike) -> None:
        """Record the survival of the drafts of a step planned by ``budget``."""
        ...

    def look_ahead(self, most: Sequence[int]) -> None:
        """Called while the device computes, to plan the next step."""
        ...

    def took(self, seconds: float, num_requests: int, num_drafts: int | None) -> None:
        """Record the time of a step; ``num_drafts`` verified in all, None without drafting."""
        ...


class VerifyAll:
    """Draft ``num_drafts`` whenever possible, and verify as many as the limits allow."""

    def __init__(self, num_drafts: int) -> None:
        self.num_drafts = num_drafts

    def depth(self, most: Sequence[int]) -> int:
        return self.num_drafts if any(most) else 0

    def lengths(self, survival: ArrayLike, most: Sequence[int]) -> list[int]:
        _, depth = np.shape(survival)
        return [min(limit, depth) for limit in most]

    def budget(self, most: Sequence[int], depth: int) -> int | None:
        return sum(min(limit, depth) for limit in most)

    def note(self, survival: ArrayLike) -> None:
        pass

    def look_ahead(self, most: Sequence[int]) -> None:
        pass

    def took(self, seconds: float, num_requests: int, num_drafts: int | None) -> None:
        pass


class EarlyStopping:
    """Verifies the drafts that are worth their time according to this step's confidences."""

    def __init__(self, outlook: DraftOutlook) -> None:
        self.outlook = outlook

    def depth(self, most: Sequence[int]) -> int:
        block_size = self.outlook.profile.block_size
        return block_size if self.outlook.is_worth_drafting(most) else 0

    def lengths(self, survival: ArrayLike, most: Sequence[int]) -> list[int]:
        self.outlook.note(survival)
        profile, count = self.outlook.profile, len(most)
        drafting_s = profile.drafting_s(count, profile.block_size)
        return early_stopping_lengths(
            survival, most, lambda n: drafting_s + profile.verify_s(count, n)
        )

    def budget(self, most: Sequence[int], depth: int) -> int | None:
        return None

    def note(self, survival: ArrayLike) -> None:
        self.outlook.note(survival)

    def look_ahead(self, most: Sequence[int]) -> None:
        pass

    def took(self, seconds: float, num_requests: int, num_drafts: int | None) -> None:
        self.outlook.took(seconds, num_requests, num_drafts)


class StaleBudget:
    """The numbers of drafts to propose and to verify come from past steps; which drafts, from this
    step's confidences."""

    def __init__(self, outlook: DraftOutlook) -> None:
        self.outlook = outlook
        self._past: deque[Floats] = deque(maxlen=STALE_STEPS)
        self._budget = 0
        self._ahead: tuple[Sequence[int], int, int] | None = None

    def depth(self, most: Sequence[int]) -> int:
        ahead, self._ahead = self._ahead, None
        if not self.outlook.is_worth_drafting(most):
            self._past.clear()
            return 0
        if ahead is None or ahead[0] != most:
            ahead = self._best(most)
        _, depth, self._budget = ahead
        return depth

    def look_ahead(self, most: Sequence[int]) -> None:
        if len(self._past) == STALE_STEPS and any(most):
            self._ahead = self._best(most)

    def _best(self, most: Sequence[int]) -> tuple[Sequence[int], int, int]:
        """The limits, the drafts to propose per request, and the total to verify."""
        profile, count = self.outlook.profile, len(most)
        is_known = len(self._past) == STALE_STEPS
        known = self._past[0] if is_known else self.outlook.survival[None]
        expected = known[np.arange(count) % len(known)]
        deepest = min(max(most), profile.block_size)
        drafting_s = [profile.drafting_s(count, depth) for depth in range(1, deepest + 1)]
        step_s: StepSeconds = lambda n: profile.verify_s(count, n)  # noqa: E731
        return most, *best_budget(expected[:, :deepest], most, step_s, drafting_s)

    def lengths(self, survival: ArrayLike, most: Sequence[int]) -> list[int]:
        self.note(survival)
        return top_lengths(survival, most, self._budget)

    def budget(self, most: Sequence[int], depth: int) -> int | None:
        return min(self._budget, sum(min(limit, depth) for limit in most))

    def note(self, survival: ArrayLike) -> None:
        self._past.append(self.outlook.note(survival))

    def took(self, seconds: float, num_requests: int, num_drafts: int | None) -> None:
        self.outlook.took(seconds, num_requests, num_drafts)


def make_planner(
    profile: StepProfile | None,
    num_drafts: int,
    device: str,
    window: int,
    calibration: Calibration | None,
) -> DraftPlanner:
    """Without a profile, ``num_drafts`` per request; else as many as pay off, planned in the way
    that suits the device."""
    if profile is None:
        return VerifyAll(num_drafts)
    typical = calibration.typical_survival if calibration else ()
    outlook = DraftOutlook(profile, window, typical)
    return EarlyStopping(outlook) if device == "cpu" else StaleBudget(outlook)
