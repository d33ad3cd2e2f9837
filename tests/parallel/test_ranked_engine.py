"""The engine on several ranks gives one rank's answers."""

from __future__ import annotations

from functools import cache

import pytest
from golden_ranks import Answers, margins, one_rank
from rank_pool import RankPool

COUNT = 5  # more than two ranks decode at a time


@cache
def expected(name: str, drafts: int) -> Answers:
    return one_rank(name, COUNT, {"num_speculative_tokens": drafts})


def merged(parts: list[Answers], size: int) -> Answers:
    """Answers of the first group; every group must have the same."""
    groups = [parts[i : i + size] for i in range(0, len(parts), size)]
    whole = [{key: value for part in group for key, value in part.items()} for group in groups]
    assert all(answers == whole[0] for answers in whole)
    return whole[0]


@pytest.mark.parametrize(
    ("name", "size", "drafts"),
    [("tiny-a", 4, 2), ("kdim-a", 2, 2), ("kdim-a", 4, 0)],
)
def test_experts_on_several_ranks(pool: RankPool, name: str, size: int, drafts: int) -> None:
    fields = {"num_speculative_tokens": drafts}
    parts = pool.run("answers", name, COUNT, size, fields)
    assert merged(parts, size) == expected(name, drafts)


def test_small_passes_take_the_form_of_fixed_capacity(pool: RankPool) -> None:
    """Decode steps have at most three tokens per rank here, prompts have more."""
    parts = pool.run("answers", "tiny-a", COUNT, 2, {}, True, 4)
    assert merged(parts, 2) == expected("tiny-a", 0)


def test_two_nodes_of_two_ranks(pool: RankPool) -> None:
    """Over the network once per node, fanned out inside; experts move between nodes, too."""
    parts = pool.run("answers", "tiny-a", COUNT, 4, {"num_speculative_tokens": 2}, True, 0, 2)
    assert merged(parts, 4) == expected("tiny-a", 2)


CLEAR = 0.35  # the margin above which the golden data calls a choice clear


@pytest.mark.parametrize(("name", "num_equal"), [("tiny-a", 1), ("kdim-a", 3)])
def test_the_reduced_exchange_differs_only_after_a_close_choice(
    pool: RankPool, name: str, num_equal: int
) -> None:
    """Greedy answers agree up to a step where the two likeliest tokens were near each other; after
    it they may go anywhere."""
    exact, ahead = expected(name, 0), margins(name, COUNT)
    reduced = merged(pool.run("answers", name, COUNT, 2, {}, False), 2)
    greedy = [key for key in exact if int(key) % 2 == 0]
    for key in greedy:
        steps = zip(exact[key], reduced[key], ahead[key], strict=True)
        first = next((margin for one, other, margin in steps if one != other), 0.0)
        assert first < CLEAR, (key, exact[key], reduced[key])
    assert sum(exact[key] == reduced[key] for key in greedy) >= num_equal


@pytest.mark.parametrize(("size", "tensor_size", "drafts"), [(1, 2, 2), (2, 2, 0), (4, 2, 2)])
def test_heads_on_two_ranks(pool: RankPool, size: int, tensor_size: int, drafts: int) -> None:
    """(4, 2): two pairs of ranks share heads and answer rows, and all four share experts."""
    fields = {"num_speculative_tokens": drafts}
    parts = pool.run("answers_with_shared_heads", "tiny-a", COUNT, size, tensor_size, fields)
    assert merged(parts, max(size, tensor_size)) == expected("tiny-a", drafts)


def test_restored_rings_reach_the_ranks_that_follow(pool: RankPool) -> None:
    """Batch-invariant mode restores saved rings on a prefix hit; half the prompts share one."""
    fields = {"batch_invariant": True, "max_num_seqs": 2}
    parts = pool.run("answers_with_shared_heads", "kdim-a", COUNT, 1, 2, fields)
    assert merged(parts, 2) == one_rank("kdim-a", COUNT, fields)


def test_rings_of_a_slot_are_those_of_both_halves(pool: RankPool) -> None:
    assert pool.run("rings_of_a_pipeline", "tiny-a") == [True] * 4


@pytest.mark.parametrize(
    ("name", "drafts", "is_invariant"), [("tiny-a", 2, False), ("kdim-a", 0, True)]
)
def test_encoder_and_decoder_layers_on_two_ranks(
    pool: RankPool, name: str, drafts: int, is_invariant: bool
) -> None:
    fields = {"num_speculative_tokens": drafts, "batch_invariant": is_invariant}
    parts = pool.run("answers_of_a_pipeline", name, COUNT, fields)
    assert parts[0] == parts[2] == one_rank(name, COUNT, fields) and not parts[1]


@pytest.mark.parametrize(("num_prefill", "num_decode", "drafts"), [(1, 1, 2), (2, 2, 2), (1, 2, 0)])
def test_prompts_on_some_ranks_and_answers_on_others(
    pool: RankPool, num_prefill: int, num_decode: int, drafts: int
) -> None:
    fields = {"num_speculative_tokens": drafts}
    parts = pool.run("answers_of_two_roles", "tiny-a", COUNT, num_prefill, num_decode, fields)
    assert all(parts[:num_decode])
    answers = {key: value for part in parts for key, value in part.items()}
    assert answers == expected("tiny-a", drafts)


@pytest.mark.parametrize(("size", "tensor_size"), [(2, 1), (4, 2)])
def test_experts_that_move_while_the_engine_runs(
    pool: RankPool, size: int, tensor_size: int
) -> None:
    """Placed anew by load every four passes, with redundant replicas: the same answers."""
    results = pool.run("answers_with_moving_experts", "tiny-a", COUNT, size, tensor_size, {})
    assert merged([answers for answers, _ in results], size) == expected("tiny-a", 0)
    assert all(num_moved > 0 for _, num_moved in results)


def test_ranks_plan_as_many_blocks_as_the_smallest_holds(pool: RankPool) -> None:
    assert pool.run("planned_blocks", "tiny-a") == [40] * 4
