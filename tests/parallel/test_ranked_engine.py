"""The engine on several ranks gives one rank's answers."""

from __future__ import annotations

from functools import cache

import pytest
from golden_ranks import Answers, one_rank
from rank_pool import RankPool

COUNT = 9


@cache
def expected(name: str, drafts: int) -> Answers:
    return one_rank(name, COUNT, {"num_speculative_tokens": drafts})


def merged(parts: list[Answers], size: int) -> Answers:
    """Answers of the first group; every group must have the same."""
    groups = [parts[i : i + size] for i in range(0, len(parts), size)]
    whole = [{key: value for part in group for key, value in part.items()} for group in groups]
    assert all(answers == whole[0] for answers in whole)
    return whole[0]


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", ["tiny-a", "kdim-a"])
@pytest.mark.parametrize("drafts", [0, 2])
def test_experts_on_several_ranks(pool: RankPool, name: str, size: int, drafts: int) -> None:
    fields = {"num_speculative_tokens": drafts}
    parts = pool.run("answers", name, COUNT, size, True, fields)
    assert merged(parts, size) == expected(name, drafts)
