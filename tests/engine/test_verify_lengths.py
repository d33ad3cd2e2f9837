"""Verification lengths: prefixes, budgets, ties, and confidences that are no numbers."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.engine.speculation.verify_lengths import (
    best_budget,
    early_stopping_lengths,
    top_lengths,
)

CHANCE = st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.5, 1.0, math.nan]))


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[list[float]], list[int]]:
    """Survival by request, falling as a product of confidences is, and limits."""
    count, block = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    survival = []
    for _ in range(count):
        chances = draw(st.lists(CHANCE, min_size=block, max_size=block))
        survival.append([math.prod(chances[: k + 1]) for k in range(block)])
    most = draw(st.lists(st.integers(0, block), min_size=count, max_size=count))
    return survival, most


def usable(row: list[float], limit: int) -> int:
    """How many drafts of a row have any chance."""
    return next((k for k in range(limit) if not row[k] > 0), limit)


def gained(survival: list[list[float]], lengths: list[int]) -> float:
    return sum(sum(row[:length]) for row, length in zip(survival, lengths, strict=True))


@given(batches(), st.integers(0, 40))
def test_a_budget_takes_the_likeliest_drafts_as_prefixes(
    batch: tuple[list[list[float]], list[int]], budget: int
) -> None:
    survival, most = batch
    lengths = top_lengths(survival, most, budget)
    limits = [usable(row, limit) for row, limit in zip(survival, most, strict=True)]
    assert all(0 <= length <= limit for length, limit in zip(lengths, limits, strict=True))
    assert sum(lengths) == min(budget, sum(limits))
    best = max(
        gained(survival, list(choice))
        for choice in product(*(range(limit + 1) for limit in limits))
        if sum(choice) <= budget
    )
    assert gained(survival, lengths) == pytest.approx(best)


@given(batches(), st.floats(0.0, 2.0))
def test_early_stopping_grows_the_rate_with_each_draft(
    batch: tuple[list[list[float]], list[int]], cost: float
) -> None:
    survival, most = batch

    def rate(number: int) -> float:
        lengths = top_lengths(survival, most, number)
        return (len(survival) + gained(survival, lengths)) / step_s(number)

    def step_s(number: int) -> float:
        return 1.0 + cost * number

    lengths = early_stopping_lengths(survival, most, lambda numbers: 1.0 + cost * numbers)
    number = sum(lengths)
    assert lengths == top_lengths(survival, most, number)
    assert all(rate(n + 1) > rate(n) for n in range(number))
    possible = sum(usable(row, limit) for row, limit in zip(survival, most, strict=True))
    assert number == possible or rate(number + 1) <= rate(number) * (1 + 1e-12)


@given(batches(), st.lists(st.floats(0.1, 9.0), min_size=31, max_size=31))
def test_the_best_budget_is_the_best_of_all_on_any_curve(
    batch: tuple[list[list[float]], list[int]], curve: list[float]
) -> None:
    survival, most = batch
    depth, budget = best_budget(survival, most, np.array(curve).__getitem__)
    assert depth == 1, "where all depths cost the same, there is only one"
    rates = [
        (len(survival) + gained(survival, top_lengths(survival, most, n))) / curve[n]
        for n in range(
            sum(usable(row, limit) for row, limit in zip(survival, most, strict=True)) + 1
        )
    ]
    assert rates[budget] == pytest.approx(max(rates))


@given(batches(), st.lists(st.floats(0.1, 9.0), min_size=31, max_size=31), st.data())
def test_the_best_depth_is_worth_what_it_costs(
    batch: tuple[list[list[float]], list[int]], curve: list[float], data: st.DataObject
) -> None:
    """As good as the best of all depths that are tried one by one."""
    survival, most = batch
    block = len(survival[0])
    costs = data.draw(st.lists(st.floats(0.0, 3.0), min_size=block, max_size=block))

    def rate(depth: int, budget: int) -> float:
        cut = [min(depth, limit) for limit in most]
        tokens = len(survival) + gained(survival, top_lengths(survival, cut, budget))
        return tokens / (costs[depth - 1] + curve[budget])

    def possible(depth: int) -> int:
        return sum(
            usable(row, min(depth, limit)) for row, limit in zip(survival, most, strict=True)
        )

    depth, budget = best_budget(survival, most, np.array(curve).__getitem__, costs)
    assert budget <= possible(depth)
    assert rate(depth, budget) == pytest.approx(
        max(rate(d, n) for d in range(1, block + 1) for n in range(possible(d) + 1))
    )


def test_equal_confidences_fill_all_first_places_before_any_second() -> None:
    assert top_lengths([[1.0] * 3] * 3, [3] * 3, 4) == [2, 1, 1]
    assert early_stopping_lengths([[1.0] * 2] * 2, [2, 2], np.ones_like) == [2, 2]


@given(batches(), st.integers(0, 5))
def test_a_request_s_later_drafts_change_nothing_about_its_earlier_ones(
    batch: tuple[list[list[float]], list[int]], place: int
) -> None:
    """Otherwise the choice would depend on what it decides about, and rejection would be biased."""
    survival, most = batch
    before = early_stopping_lengths(survival, most, lambda n: 1 + 0.3 * n)
    place = min(place, before[0])
    changed = [survival[0][:place] + [0.0] * (len(survival[0]) - place), *survival[1:]]
    after = early_stopping_lengths(changed, most, lambda n: 1 + 0.3 * n)
    assert after[0] >= place
