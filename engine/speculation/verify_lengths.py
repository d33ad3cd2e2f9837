"""How many drafts of each request to verify: the most tokens per second that can be expected.

A request's draft survives if it is accepted together with all drafts before it.  A step yields one
token per request and each verified draft's survival probability on top.  Survival falls along a
block, so taking drafts by falling survival always takes prefixes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
StepSeconds = Callable[[Ints], Floats]
"""Seconds of decode steps that verify so many drafts in all, for each of the numbers."""


def early_stopping_lengths(
    survival: ArrayLike, most: Sequence[int], step_s: StepSeconds
) -> list[int]:
    """Add drafts by falling survival as long as each makes the step's tokens per second grow.

    survival: [R, B] by request and draft, each row falling; most: the limits, 0 to B.
    The choice looks at no draft beyond the first that is refused, so no accepted token depends on
    what would have followed it.  Source: algorithm 1 of arXiv 2607.05147.
    """
    chances, requests, _ = _by_survival(survival, most)
    rates = _tokens(len(most), chances) / step_s(np.arange(len(chances) + 1))
    is_refused = ~(rates[1:] > rates[:-1])
    number = int(is_refused.argmax()) if is_refused.any() else len(chances)
    return _lengths(requests[:number], len(most))


def best_budget(
    survival: ArrayLike,
    most: Sequence[int],
    step_s: StepSeconds,
    drafting_s: Sequence[float] = (0.0,),
) -> tuple[int, int]:
    """How many drafts to guess for each request and to verify in all, for the most tokens per
    second, anywhere on the curve.

    ``drafting_s[d - 1]``: seconds until the first d of each are there, the last entry for all that
    are left; ``step_s`` are those of the rest of the step.
    """
    chances, _, places = _by_survival(survival, most)
    seconds = step_s(np.arange(len(chances) + 1))
    best_rate, best = 0.0, (1, 0)
    for depth, until_s in enumerate(drafting_s, start=1):
        tokens = _tokens(
            len(most), chances if depth == len(drafting_s) else chances[places < depth]
        )
        rates = tokens / (until_s + seconds[: len(tokens)])
        number = int(rates.argmax())
        if rates[number] > best_rate:
            best_rate, best = rates[number], (depth, number)
    return best


def top_lengths(survival: ArrayLike, most: Sequence[int], budget: int) -> list[int]:
    """The ``budget`` drafts that are likeliest to survive, as a length for each request."""
    _, requests, _ = _by_survival(survival, most)
    return _lengths(requests[:budget], len(most))


def _lengths(requests: Ints, count: int) -> list[int]:
    lengths: list[int] = np.bincount(requests, minlength=count).tolist()
    return lengths


def _tokens(num_requests: int, chances: Floats) -> Floats:
    """What a step yields by the number of drafts verified, 0 to all."""
    tokens: Floats = np.concatenate([[float(num_requests)], chances]).cumsum()
    return tokens


def _by_survival(survival: ArrayLike, most: Sequence[int]) -> tuple[Floats, Ints, Ints]:
    """Survival, request and place of all drafts, the likeliest first; ties by place, so that no
    draft comes before the one it builds on.  Rows end where they are no longer numbers above 0."""
    found = np.asarray(survival, dtype=np.float64).reshape(len(most), -1).T
    places = np.arange(len(found))[:, None]
    usable = np.logical_and.accumulate((found > 0) & (places < np.asarray(most)))
    falling = np.minimum.accumulate(np.where(usable, found, 0.0))
    order = np.argsort(-falling, axis=None, kind="stable")[: int(usable.sum())]
    place, request = np.unravel_index(order, falling.shape)
    return falling.ravel()[order], request, place
