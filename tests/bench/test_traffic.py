"""What the other ranks send: as many choices as they make for this rank, none twice."""

from __future__ import annotations

import numpy as np
import pytest

from deepinfer.bench.traffic import Traffic


def _traffic(routing: str = "even", ranks: int = 8, num_redundant: int = 0) -> Traffic:
    return Traffic(
        routing=routing, num_experts=384, num_choices=6, num_held=384 // ranks + num_redundant,
        ranks=ranks, seed=3,
    )  # fmt: skip


@pytest.mark.parametrize("routing", ["even", "skewed", "balanced"])
@pytest.mark.parametrize("ranks", [1, 8, 64])
def test_choices_are_those_that_reach_this_rank(ranks: int, routing: str) -> None:
    traffic = _traffic(routing, ranks, int(routing == "balanced" and ranks > 1))
    choices = traffic.choices(1_536).numpy()
    is_used = choices >= 0
    expected = 1_536 * 6 * ranks * traffic.held_shares
    found = np.bincount(choices[is_used], minlength=traffic.num_held)
    assert np.abs(found - expected).max() <= 1
    ascending = choices[:, 1:] > choices[:, :-1]
    assert (ascending | ~is_used[:, :-1]).all() and is_used.any(1).all()


@pytest.mark.parametrize("ranks", [1, 8, 64])
def test_even_routing_sends_a_rank_its_part(ranks: int) -> None:
    assert _traffic(ranks=ranks).held_shares.sum() == pytest.approx(1 / ranks)


def test_received_tokens_are_those_of_a_simulation() -> None:
    """Six different experts for each of 8 x 20,000 tokens, 48 of 384 of them here."""
    generator = np.random.default_rng(0)
    order = generator.random((20_000, 384)).argsort(1)[:, :6]
    simulated = 8 * int((order < 48).any(1).sum())
    assert _traffic().num_received(20_000) == pytest.approx(simulated, rel=0.02)


@pytest.mark.parametrize("ranks", [8, 64])
def test_the_busiest_rank_has_most_and_balance_takes_it_back(ranks: int) -> None:
    skewed = float(_traffic("skewed", ranks).held_shares.sum()) * ranks
    balanced = float(_traffic("balanced", ranks, 1).held_shares.sum()) * ranks
    assert 1.0 <= balanced < 1.1 < skewed
