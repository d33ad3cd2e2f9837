"""Distribution of answer lengths, estimated from finished and truncated answers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from random import Random

_MOST_AGAIN = 2_048


class AnswerLengths:
    """The distribution estimated from ``(length, has_ended)`` pairs.

    A truncated answer is a lower bound (Kaplan-Meier estimator).  Beyond the longest answer that
    ended, the probability to end at each token is assumed to be that observed in the longer half of
    the tokens.
    """

    def __init__(self, answers: Iterable[tuple[int, bool]]) -> None:
        self._answers = tuple(answers)
        ended: Counter[int] = Counter()
        cut: Counter[int] = Counter()
        for length, has_ended in self._answers:
            (ended if has_ended else cut)[length] += 1
        self.longest = max(ended | cut, default=0)
        num_ended = ended.total()
        half = self.longest // 2
        num_late = sum(num for length, num in ended.items() if length > half)
        num_tokens = sum(
            (ended + cut)[length] * (length - half) for length in ended | cut if length > half
        )
        self._chance = (num_late + 0.5) / max(num_tokens, 1)  # plus half an observation: never 0
        self.num_ended = num_ended
        at_risk = num_ended + cut.total()
        survival = 1.0
        self._steps: list[tuple[int, float]] = []  # (length, share of answers that are longer)
        for length in sorted(ended | cut):
            if ended[length]:
                survival *= 1 - ended[length] / at_risk
                self._steps.append((length, survival))
            at_risk -= ended[length] + cut[length]

    def is_guess(self, length: int | None, most: int) -> bool:
        """Whether a drawn ``length``, for an answer of at most ``most`` tokens, is an extrapolation
        beyond every observed answer."""
        last = self._steps[-1][0] if self._steps else 0
        return (length is None or length > last) and most > self.longest

    def measured_again(self, seed: int) -> AnswerLengths:
        """The distribution from a bootstrap sample of the answers, of at most ``_MOST_AGAIN``.
        Every other sample has one additional answer that is longer than all observed ones, since a
        sample of this size may well have missed one."""
        count = min(len(self._answers), _MOST_AGAIN)
        if not count:
            return AnswerLengths(())
        chosen = Random(seed).choices(self._answers, k=count)
        return AnswerLengths([*chosen, *([(self.longest, False)] if seed % 2 else [])])

    def draw(self, count: int, seed: int = 0, *, evenly: bool = True) -> list[int | None]:
        """``count`` shuffled lengths: evenly spaced quantiles, or independent random draws.

        All are None if no answer has ended, since then nothing is known.
        """
        drawn: list[int | None] = []
        place = 0
        random = Random(seed)
        shares: Iterable[float] = ((index + 0.5) / count for index in range(count))
        if not evenly:
            shares = sorted(random.random() for _ in range(count))
        for share in shares:
            while place < len(self._steps) and 1 - self._steps[place][1] < share - 1e-12:
                place += 1
            if place < len(self._steps):
                drawn.append(self._steps[place][0])
            else:
                drawn.append(self._beyond(share))
        random.shuffle(drawn)
        return drawn

    def _beyond(self, share: float) -> int | None:
        if not self._steps:
            return None
        last, longer = self._steps[-1]
        left = (1 - share) / longer  # share of those longer than the last
        return last + math.ceil(-math.log(left) / self._chance)
