"""How many drafts of each request to verify: the most tokens per second that can be expected.

A request's draft survives if it is accepted together with all drafts before it.  A step yields one
token per request and each verified draft's survival probability on top.  Survival falls along a
block, so taking drafts by falling survival always takes prefixes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

StepSeconds = Callable[[int], float]
"""Seconds of a decode step that verifies so many drafts in all."""


def early_stopping_lengths(
    survival: Sequence[Sequence[float]], most: Sequence[int], step_s: StepSeconds
) -> list[int]:
    """Add drafts by falling survival as long as each makes the step's tokens per second grow.

    survival: by request and draft, each row falling; most: the limits, 0 to len(row).
    The choice looks at no draft beyond the first that is refused, so no accepted token depends on
    what would have followed it.  Source: algorithm 1 of arXiv 2607.05147.
    """
    lengths = [0] * len(survival)
    expected = float(len(survival))
    best = expected / step_s(0)
    for number, (falls_short, _, row) in enumerate(_by_survival(survival, most), start=1):
        expected -= falls_short
        rate = expected / step_s(number)
        if not rate > best:
            break
        best = rate
        lengths[row] += 1
    return lengths


def best_budget(
    survival: Sequence[Sequence[float]], most: Sequence[int], step_s: StepSeconds
) -> int:
    """How many drafts to verify in all for the most tokens per second, anywhere on the curve."""
    chances = [-negative for negative, _, _ in _by_survival(survival, most)]
    expected = accumulate(chances, initial=float(len(survival)))
    rates = [tokens / step_s(number) for number, tokens in enumerate(expected)]
    return max(range(len(rates)), key=rates.__getitem__)


def top_lengths(survival: Sequence[Sequence[float]], most: Sequence[int], budget: int) -> list[int]:
    """The ``budget`` drafts that are likeliest to survive, as a length for each request."""
    lengths = [0] * len(survival)
    for _, _, row in _by_survival(survival, most)[:budget]:
        lengths[row] += 1
    return lengths


def _by_survival(
    survival: Sequence[Sequence[float]], most: Sequence[int]
) -> list[tuple[float, int, int]]:
    """(-survival, place in the block, request), the likeliest first; ties by place, so that no
    draft comes before the one it builds on.  Rows end where they are no longer numbers above 0."""
    drafts = []
    for row, (chances, limit) in enumerate(zip(survival, most, strict=True)):
        bound = 1.0
        for place, chance in enumerate(chances[: max(limit, 0)]):
            if not chance > 0.0:
                break
            bound = min(bound, chance)
            drafts.append((-bound, place, row))
    return sorted(drafts)
