"""``DraftOutlook``: whether steps with drafting yield more tokens per second than steps without.

Both kinds are judged by three things: the profile of this device, how their times compared when
they followed each other, and the recent survival of drafts.  From time to time steps of the other
kind are run as a probe; its cost is limited to a small share of the run.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from .step_profile import StepProfile
from .verify_lengths import Floats

# Share of its time that a drafting step must save, to start and to continue drafting (hysteresis).
SAVED_TO_BEGIN, SAVED_TO_GO_ON = 0.10, 0.02
# Steps within which the cost of catching up the draft stages must be recovered.
STEPS_TO_REPAY = 32
# Share of the run for probes: two steps with drafts, the first of which catches up and the second
# of which is compared, or one step without.
PROBE_SHARE, DRAFT_PROBE_STEPS, PLAIN_PROBE_STEPS = 0.005, 2, 1
LEAST_STEPS_TO_PROBE = 64
# Weights of a new value in exponential averages.
NEWEST_TIME, NEWEST_COMPARISON, NEWEST_SURVIVAL = 0.2, 0.5, 0.1
# A single time or comparison is clamped to this multiple of the average.
MOST_CHANGE = 2.0
_LEAST_SURVIVAL = 1e-6


class Pace:
    """How the times of both kinds of steps compare, relative to the profile.

    The load of the machine changes, so only consecutive steps are compared.
    ``comparison``: the measured ratio of drafting to plain steps over the ratio in the profile.
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
    """``window``: tokens that the draft stages look back; ``typical_survival``: survival by
    position to assume until drafts were observed, by default 1."""

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
        self._depth = profile.block_size  # drafts per request when there last were any
        self._is_drafting = False
        self._num_steps = 0  # since drafting was started or stopped
        self._num_missed = 0  # tokens per request that the draft stages have not seen
        self._probe_steps = 0
        self._saved_up_s = 0.0

    def is_worth_drafting(self, most: Sequence[int]) -> bool:
        """Whether to draft in this step; at most ``most`` drafts per request can be verified."""
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
        """Record the predicted survival [R, D] of each request's drafts; returned for whole blocks
        [R, B], with later drafts extrapolated from when there were any."""
        seen = np.asarray(survival, dtype=np.float64)
        self._depth = depth = seen.shape[1]
        later = self.survival[depth:] / max(self.survival[depth - 1], _LEAST_SURVIVAL)
        whole = np.concatenate([seen, seen[:, -1:] * later], axis=1)
        self._num_noted += 1
        weight = max(NEWEST_SURVIVAL, 1 / self._num_noted)
        self.survival += weight * (whole.mean(0) - self.survival)
        return whole

    def took(self, seconds: float, num_requests: int, num_drafts: int | None) -> None:
        """Record the time of a step; ``num_drafts`` verified in all, None without drafting."""
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
        """Seconds of a step without drafting; of the best step that verifies all its drafts; and of
        generating the tokens of the latter without drafting."""
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
