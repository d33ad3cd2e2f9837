"""Selects the drafts to verify that maximize the expected tokens per second.

A draft survives if it is accepted together with all drafts before it.  A step is expected to yield
one token per request plus the survival probability of each verified draft.  Survival decreases
along a block, so selecting drafts by descending survival always selects prefixes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
StepSeconds = Callable[[Ints], Floats]
"""Maps total numbers of verified drafts to seconds of a decode step."""


def early_stopping_lengths(
    survival: ArrayLike, most: Sequence[int], step_s: StepSeconds
) -> list[int]:
    """Add drafts by descending survival as long as each increases the step's tokens per second.

    survival: [R, B] by request and draft, each row descending; most: the limits, 0 to B.
    The selection looks at no draft beyond the first one refused, so no accepted token depends on
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
    """Drafts to propose per request, and to verify in all, for the most tokens per second: the
    global maximum.

    ``drafting_s[d - 1]``: seconds to draft d tokens per request, with the last entry for any larger
    d; ``step_s``: seconds of the rest of the step.
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
    """The ``budget`` drafts most likely to survive, as a length for each request."""
    _, requests, _ = _by_survival(survival, most)
    return _lengths(requests[:budget], len(most))


def _lengths(requests: Ints, count: int) -> list[int]:
    lengths: list[int] = np.bincount(requests, minlength=count).tolist()
    return lengths


def _tokens(num_requests: int, chances: Floats) -> Floats:
    """Expected tokens of a step by the number of drafts verified, 0 to all."""
    tokens: Floats = np.concatenate([[float(num_requests)], chances]).cumsum()
    return tokens


def _by_survival(survival: ArrayLike, most: Sequence[int]) -> tuple[Floats, Ints, Ints]:
    """Survival, request and position of all drafts, the most likely first; ties by position, so
    that no draft precedes the one before it.  Rows end at the first value that is not positive."""
    found = np.asarray(survival, dtype=np.float64).reshape(len(most), -1).T
    places = np.arange(len(found))[:, None]
    usable = np.logical_and.accumulate((found > 0) & (places < np.asarray(most)))
    falling = np.minimum.accumulate(np.where(usable, found, 0.0))
    order = np.argsort(-falling, axis=None, kind="stable")[: int(usable.sum())]
    place, request = np.unravel_index(order, falling.shape)
    return falling.ravel()[order], request, place
