"""Counters of drafts: acceptance by position, and how well confidence predicts it."""

from __future__ import annotations

from collections.abc import Sequence

NUM_BINS = 20
NUM_STRETCHES = 32


class DraftCounters:
    """Sums over decode steps."""

    def __init__(self) -> None:
        self.num_proposed = 0
        self.num_blocks = 0
        self.verified_per_position: list[int] = []
        self.accepted_per_position: list[int] = []
        self.verify_lengths = Stretches()
        self._bins = [(0, 0.0, 0)] * NUM_BINS

    def add(
        self,
        num_proposed: int,
        num_drafts: Sequence[int],
        tokens: Sequence[Sequence[int]],
        survival: Sequence[Sequence[float]],
    ) -> None:
        """Add a step: per request the number of verified drafts, the new tokens, and each verified
        draft's predicted survival if known.  ``num_proposed`` is 0 for a step without drafting."""
        self.verify_lengths.add(sum(num_drafts), len(num_drafts))
        if not num_proposed:
            return
        self.num_proposed += num_proposed
        self.num_blocks += len(num_drafts)
        for places in (self.verified_per_position, self.accepted_per_position):
            places += [0] * (max(num_drafts, default=0) - len(places))
        for verified, new, chances in zip(num_drafts, tokens, survival, strict=True):
            num_accepted = len(new) - 1
            for place in range(verified):
                self.verified_per_position[place] += 1
                self.accepted_per_position[place] += place < num_accepted
            for place, chance in enumerate(chances):
                self._add_chance(chance, place < num_accepted)

    def calibration_error(self) -> float | None:
        """Expected calibration error: the mean difference between predicted survival and accepted
        fraction over bins of survival, weighted by drafts; None without drafts."""
        num = sum(count for count, _, _ in self._bins)
        if not num:
            return None
        return sum(abs(total - accepted) for _, total, accepted in self._bins) / num

    def _add_chance(self, chance: float, is_accepted: bool) -> None:
        index = min(int(chance * NUM_BINS), NUM_BINS - 1)
        count, total, accepted = self._bins[index]
        self._bins[index] = (count + 1, total + chance, accepted + is_accepted)


class Stretches:
    """A mean over time with bounded memory: equal stretches of steps, merged pairwise when full."""

    def __init__(self) -> None:
        self._steps_each = 1
        self._steps = 0
        self._sums: list[tuple[int, int]] = []

    def add(self, amount: int, weight: int) -> None:
        if self._steps % self._steps_each == 0:
            if len(self._sums) == 2 * NUM_STRETCHES:
                pairs = zip(self._sums[::2], self._sums[1::2], strict=True)
                self._sums = [(a + c, b + d) for (a, b), (c, d) in pairs]
                self._steps_each *= 2
            self._sums.append((0, 0))
        self._steps += 1
        last_amount, last_weight = self._sums[-1]
        self._sums[-1] = (last_amount + amount, last_weight + weight)

    def means(self) -> tuple[float, ...]:
        """The mean of each interval, oldest first."""
        return tuple(round(amount / weight, 3) if weight else 0.0 for amount, weight in self._sums)
