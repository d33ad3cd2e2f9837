"""How long answers get, from some that ended by themselves and some that were cut before."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from random import Random

_MOST_AGAIN = 2_048


class AnswerLengths:
    """The distribution behind ``(length, has_ended)`` pairs.

    A cut answer only says that it would have been longer (Kaplan and Meier's estimate).  Beyond the
    longest that ended, answers are taken to end at each token with the chance of the known tokens
    in the longer half.
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
        self._chance = (num_late + 0.5) / max(num_tokens, 1)  # half a case more: never quite none
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
        """Whether a drawn ``length`` is beyond all that ended, for an answer of at most ``most``
        tokens, and no answer was seen to get that long."""
        last = self._steps[-1][0] if self._steps else 0
        return (length is None or length > last) and most > self.longest

    def measured_again(self, seed: int) -> AnswerLengths:
        """What as many other answers of the same kind might have shown (a bootstrap), at most
        ``_MOST_AGAIN`` of them.  Every other time with one more that is longer than all that were
        seen: among as many as were seen, there may be one."""
        count = min(len(self._answers), _MOST_AGAIN)
        if not count:
            return AnswerLengths(())
        chosen = Random(seed).choices(self._answers, k=count)
        return AnswerLengths([*chosen, *([(self.longest, False)] if seed % 2 else [])])

    def draw(self, count: int, seed: int = 0, *, evenly: bool = True) -> list[int | None]:
        """``count`` lengths that follow the distribution as evenly as possible, or each by chance;
        shuffled.

        None for all if no answer ended: nothing is known.
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
        left = (1 - share) / longer  # of those longer than the last
        return last + math.ceil(-math.log(left) / self._chance)
