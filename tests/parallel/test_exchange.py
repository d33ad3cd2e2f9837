"""Experts on other ranks give one rank's bits; what the faster form gives is near."""

from __future__ import annotations

import pytest
import torch
from rank_jobs import CHOSEN, HIDDEN, placement_for, tokens_of
from rank_pool import RankPool

from deepinfer.engine.parallel.payload import pack, payload_bytes, quantize_rows, unpack
from deepinfer.engine.parallel.routing_table import RoutingTable
from deepinfer.kernels.quant import fake_quantize_fp8


def test_a_payload_row_holds_what_the_experts_would_see() -> None:
    x, ids, weights = tokens_of(0, 7, "any")
    x[0] = 0
    x[1] *= 1e-6  # below the smallest scale
    x[2, 0] = float("nan")
    rows = pack(quantize_rows(x), ids - 1, weights)
    assert rows.shape == (7, payload_bytes(HIDDEN, CHOSEN)) and rows.dtype == torch.uint8
    got, places, factors = unpack(rows, HIDDEN)
    others = [0, 1, 3, 4, 5, 6]
    assert torch.equal(got[others], fake_quantize_fp8(x)[others]) and got[2].isnan().any()
    assert torch.equal(fake_quantize_fp8(got[1:2]), got[1:2])
    assert torch.equal(places, ids - 1) and torch.equal(factors, weights)
    empty = pack(quantize_rows(x[:0]), ids[:0], weights[:0])
    assert [len(part) for part in unpack(empty, HIDDEN)] == [0, 0, 0]


def test_replicas_take_turns() -> None:
    placement = placement_for(4, 4)
    table = RoutingTable.of(placement, 0)
    assert [len(members) for members in table.members] == [3, 3, 3, 3]
    for expert in range(8):
        ids = torch.full((12, 1), expert)
        ranks, places = table.route(ids, start=5)
        for rank, place in zip(ranks.flatten().tolist(), places.flatten().tolist(), strict=True):
            assert table.members[rank][place] == expert
        used = ranks.unique(return_counts=True)[1]
        assert len(used) == placement.num_replicas[0, expert] and used.max() - used.min() <= 1
    ranks, places = table.route(torch.tensor([[-1, 3]]), start=0)
    assert ranks[0, 0] == places[0, 0] == -1 and ranks.dtype == torch.int64


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("form", ["exact", "fixed exact"])
@pytest.mark.parametrize(
    ("counts", "route", "num_redundant"),
    [
        ((9, 4, 1, 6), "any", 0),
        ((3, 0, 5, 0), "any", 0),
        ((7, 7, 7, 7), "one", 0),
        ((5, 8, 2, 3), "any", 4),
        ((0, 0, 0, 1), "one", 4),
    ],
)
def test_any_number_of_ranks_gives_the_same_bits(
    pool: RankPool,
    size: int,
    form: str,
    counts: tuple[int, ...],
    route: str,
    num_redundant: int,
) -> None:
    redundant = num_redundant if size > 1 else 0
    results = pool.run("exchange", size, counts, form, route, redundant)
    assert [same for same, _ in results] == [True] * 4


@pytest.mark.parametrize("form", ["reduced", "fixed reduced"])
def test_the_reduced_form_is_near(pool: RankPool, form: str) -> None:
    """One bf16 rounding per rank instead of one per choice."""
    results = pool.run("exchange", 4, (9, 4, 0, 6), form, "any", 0)
    assert all(error < 0.01 for _, error in results)


@pytest.mark.parametrize("route", ["any", "one"])
def test_two_nodes_of_two_ranks(pool: RankPool, route: str) -> None:
    results = pool.run("exchange_two_levels", (6, 0, 3, 9), "exact", route)
    assert [same for same, _ in results] == [True] * 4
    results = pool.run("exchange_two_levels", (6, 0, 3, 9), "reduced", route)
    assert all(error < 0.01 for _, error in results)


def test_more_tokens_than_capacity_are_refused(pool: RankPool) -> None:
    for message in pool.run("too_many_tokens"):
        assert "5 tokens in a step" in message and "room for 4" in message
