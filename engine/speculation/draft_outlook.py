"""``DraftOutlook``: whether steps with drafting are worth more than steps without.

Both kinds are judged from three things: the profile of this device, how their times compared where
they followed each other, and how likely drafts survived lately.  Now and then steps of the other
kind are run to compare again; what that costs is saved up first, as a small share of the run.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from .step_profile import StepProfile
from .verify_lengths import Floats

# Share of its time that a drafting step must save, to begin with drafting and to go on with it.
SAVED_TO_BEGIN, SAVED_TO_GO_ON = 0.10, 0.02
# The draft stages' catching up must be paid back in so many steps.
STEPS_TO_REPAY = 32
# Share of the run for probes: two steps with drafts, of which the first pays for catching up and
# the second is compared; or one without.
PROBE_SHARE, DRAFT_PROBE_STEPS, PLAIN_PROBE_STEPS = 0.005, 2, 1
LEAST_STEPS_TO_PROBE = 64
# Weights of the newest among those before it.
NEWEST_TIME, NEWEST_COMPARISON, NEWEST_SURVIVAL = 0.2, 0.5, 0.1
# A single time or comparison counts as at most so many times what it was before.
MOST_CHANGE = 2.0
_LEAST_SURVIVAL = 1e-6


class Pace:
    """How times of both kinds of steps compare with each other, relative to the profile.

    Other programs come and go, so only steps that follow each other are compared.
    ``comparison``: drafting takes so many times as long, against plain steps, as the profile says.
    """

    def __init__(self) -> None:
        self.comparison = 1.0
        self._num_comparisons = 0
        self._was_drafting: bool | None = None
        self._slowness = 1.0

    def note(self, is_drafting: bool, seconds: float, expected_s: float) -> None:
        slowness = seconds / expected_s
        if is_drafting == self._was_drafting:
            change = min(slowness, MOST_CHANGE * self._slowness) - self._slowness
            self._slowness += NEWEST_TIME * change
            return
        if self._was_drafting is not None:
            ratio = slowness / self._slowness
            self._compare(ratio if is_drafting else 1 / ratio)
        self._was_drafting, self._slowness = is_drafting, slowness

    def _compare(self, ratio: float) -> None:
        self._num_comparisons += 1
        weight = max(NEWEST_COMPARISON, 1 / self._num_comparisons)
        least, most = self.comparison / MOST_CHANGE, self.comparison * MOST_CHANGE
        self.comparison += weight * (min(max(ratio, least), most) - self.comparison)


class DraftOutlook:
    """``window``: tokens that the draft stages look back; ``typical_survival``: how likely drafts
    survive by place, as long as none was seen; without it, certainly."""

    def __init__(
        self, profile: StepProfile, window: int, typical_survival: Sequence[float] = ()
    ) -> None:
        self.profile = profile
        self.survival = np.ones(profile.block_size)
        self._num_noted = 0
        if typical_survival:
            self.survival[:] = typical_survival[: profile.block_size]
            self._num_noted = round(1 / NEWEST_SURVIVAL)
        self._window = window
        self._pace = Pace()
        self._depth = profile.block_size  # drafts guessed for each request when there last were any
        self._is_drafting = False
        self._num_steps = 0  # since drafting began or ended
        self._num_missed = 0  # tokens of each request that the draft stages have not seen
        self._probe_steps = 0
        self._saved_up_s = 0.0

    def is_worth_drafting(self, most: Sequence[int]) -> bool:
        """Whether to draft in this step; ``most`` drafts of each request can be verified."""
        if not any(most):
            return False
        plain_s, drafting_s, worth_s = self._times(most)
        saved_s = worth_s - drafting_s
        catch_up_s = self.profile.catch_up_s(len(most), self._num_missed)
        if self._is_drafting:
            is_worth_it = saved_s >= SAVED_TO_GO_ON * drafting_s
            loss_s = plain_s * saved_s / worth_s
        else:
            is_worth_it = saved_s >= SAVED_TO_BEGIN * drafting_s
            is_worth_it &= saved_s * STEPS_TO_REPAY >= catch_up_s
            loss_s = catch_up_s - DRAFT_PROBE_STEPS * saved_s
        if is_worth_it != self._is_drafting:
            self._is_drafting, self._num_steps, self._probe_steps = is_worth_it, 0, 0
            return is_worth_it
        self._num_steps += 1
        loss_s = max(loss_s, 0.0)
        if self._num_steps > LEAST_STEPS_TO_PROBE and self._saved_up_s >= loss_s:
            self._saved_up_s -= loss_s
            self._num_steps = 0
            self._probe_steps = PLAIN_PROBE_STEPS if is_worth_it else DRAFT_PROBE_STEPS
        is_probe = self._probe_steps > 0
        self._probe_steps -= is_probe
        return is_worth_it != is_probe

    def note(self, survival: ArrayLike) -> Floats:
        """The survival [R, D] of each request's drafts, as confidence promises it; returned for
        whole blocks [R, B], where further drafts would fare as they did when there were any."""
        seen = np.asarray(survival, dtype=np.float64)
        self._depth = depth = seen.shape[1]
        later = self.survival[depth:] / max(self.survival[depth - 1], _LEAST_SURVIVAL)
        whole = np.concatenate([seen, seen[:, -1:] * later], axis=1)
        self._num_noted += 1
        weight = max(NEWEST_SURVIVAL, 1 / self._num_noted)
        self.survival += weight * (whole.mean(0) - self.survival)
        return whole

    def took(self, seconds: float, num_requests: int, num_drafts: int | None) -> None:
        """How long a step took; ``num_drafts`` verified in all, None without drafting."""
        expected_s = self.profile.plain_step_s(num_requests)
        if num_drafts is not None:
            expected_s = self.profile.drafting_s(num_requests, self._depth)
            expected_s += float(self.profile.verify_s(num_requests, num_drafts))
        self._saved_up_s += PROBE_SHARE * expected_s
        if num_drafts is None or not self._num_missed:
            self._pace.note(num_drafts is not None, seconds, expected_s)
        missed = self._num_missed + 1 if num_drafts is None else 0
        self._num_missed = min(missed, self._window)

    def _times(self, most: Sequence[int]) -> tuple[float, float, float]:
        """Seconds of a step without drafting; of the best step with it that verifies all it
        guesses; and the time that the tokens of the latter would take without."""
        count, block_size = len(most), self.profile.block_size
        reaching = np.bincount(most, minlength=block_size + 1)[::-1].cumsum()[::-1][1:]
        depths = range(1, block_size + 1)
        plain_s = self.profile.plain_step_s(count)
        drafting_s = np.array([self.profile.drafting_s(count, depth) for depth in depths])
        drafting_s += self.profile.verify_s(count, reaching.cumsum())
        drafting_s *= self._pace.comparison
        worth_s = plain_s * (1 + (reaching * self.survival).cumsum() / count)
        best = int((worth_s / drafting_s).argmax())
        return plain_s, float(drafting_s[best]), float(worth_s[best])
