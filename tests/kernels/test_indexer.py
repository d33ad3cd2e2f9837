"""Index scores, top-k and candidate blocks against the obvious loops."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.kernels.indexer import (
    candidate_blocks,
    listed_index_scores,
    num_listed_places,
    paged,
    paged_index_scores,
    pool_rows,
    select_topk,
)
from deepinfer.kernels.indexer.reference import index_scores_reference
from deepinfer.kernels.quant import fake_quantize_fp4, pack_index_rows
from deepinfer.kernels.testing import assert_bitwise_equal

NUMBERS = [-2.0, -0.0, 0.0, 0.5, 1.0, 3.0]
SCORES = st.sampled_from([*NUMBERS, float("-inf"), float("nan"), -float("nan")])


def naive_topk(scores, visible, k):
    listed = [i for i in range(min(visible, len(scores))) if scores[i] > float("-inf")]
    best = sorted(sorted(listed, key=lambda i: (-scores[i], i))[:k])
    return best + [-1] * (k - len(best))


@given(st.lists(SCORES, min_size=1, max_size=30), st.integers(0, 35), st.integers(1, 12))
def test_topk_is_the_sorted_prefix(scores, visible, k):
    """Few different scores, so that nearly every cut goes through a tie."""
    chosen = select_topk(torch.tensor([scores]), torch.tensor([visible]), k)
    assert chosen[0].tolist() == naive_topk(scores, visible, k)


@given(st.integers(0, 2**31), st.integers(1, 300), st.integers(1, 64))
def test_topk_of_bf16_scores(seed, count, k):
    scores = torch.randn(3, count, generator=torch.Generator().manual_seed(seed)).bfloat16()
    visible = torch.tensor([count, count // 2, 0])
    chosen = select_topk(scores, visible, k)
    for row in range(3):
        assert chosen[row].tolist() == naive_topk(scores[row].tolist(), int(visible[row]), k)


@given(
    st.lists(st.sampled_from([*NUMBERS, float("nan")]), min_size=1, max_size=40),
    st.integers(1, 40),
    st.sampled_from([1, 2, 8]),
    st.integers(1, 6),
)
def test_candidate_blocks(scores, visible, block_size, num_blocks):
    visible = min(visible, len(scores))
    seen = torch.tensor([visible])
    blocks = candidate_blocks(torch.tensor([scores]), seen, block_size, num_blocks)
    best = {}
    for entry in range(visible):
        if scores[entry] > float("-inf"):  # NaN is never a reason to take a block
            block = entry // block_size
            best[block] = max(best.get(block, float("-inf")), scores[entry])
    best[(visible - 1) // block_size] = float("inf")
    expected = sorted(sorted(best, key=lambda block: (-best[block], block))[:num_blocks])
    assert blocks[0].tolist() == expected + [-1] * (num_blocks - len(expected))
    listed = [block * block_size + place for block in expected for place in range(block_size)]
    places = [entry < visible for entry in listed]
    assert places == sorted(places, reverse=True), "what is seen comes first"
    assert num_listed_places(blocks, seen, block_size).tolist() == [sum(places)]


def random_case(requests, queries, heads, width, entries, seed=0):
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(requests, queries, heads, width, generator=generator)
    keys = torch.randn(requests, entries, width, generator=generator)
    weights = torch.randn(requests, queries, heads, generator=generator).bfloat16()
    return fake_quantize_fp4(q), weights, fake_quantize_fp4(keys)


def test_scores_follow_the_definition():
    q, weights, keys = random_case(2, 3, 4, 32, 17)
    scores = index_scores_reference(q, weights, keys)
    for r, t, e in ((0, 0, 0), (1, 2, 16), (0, 1, 9)):
        dots = (q[r, t].double() @ keys[r, e].double()).bfloat16()
        terms = (dots.relu() * weights[r, t]).double()
        assert float(scores[r, t, e]) == float(terms.sum().bfloat16())


def test_a_score_does_not_depend_on_what_else_is_scored():
    q, weights, keys = random_case(5, 6, 4, 128, 203)
    whole = index_scores_reference(q, weights, keys)
    for entries in (1, 7, 64, 200):
        assert_bitwise_equal(
            index_scores_reference(q, weights, keys[:, :entries]), whole[..., :entries]
        )
    one = index_scores_reference(q[2:3, 1:2], weights[2:3, 1:2], keys[2:3])
    assert_bitwise_equal(one, whole[2:3, 1:2])


@pytest.mark.parametrize("cache_elements", [1, 500, 1 << 17])
@pytest.mark.parametrize(
    "requests", [[0, 0, 2, 2, 2], [2, 0, 2, 1, 0], [1] * 20 + [3] * 2, [0], []]
)
def test_paged_scores_are_those_of_each_request(requests, cache_elements, monkeypatch):
    """Whatever the order of the queries, their number, and how many are worked on at a time."""
    monkeypatch.setattr(paged, "CACHE_ELEMENTS", cache_elements)
    generator = torch.Generator().manual_seed(1)
    entries, count, table = 37, len(requests), torch.randperm(40, generator=generator).view(4, 10)
    queries = torch.randn(count, 4, 32, generator=generator)
    weights = torch.randn(count, 4, generator=generator).bfloat16()
    pool = torch.randn(40, 4, 32, generator=generator)
    visible = torch.randint(0, entries + 1, (count,), generator=generator)
    order = torch.rand(count, 5, generator=generator).argsort(1)
    blocks = order[:, :3].sort(1).values  # of eight entries, the last is not whole
    listed = (blocks[..., None] * 8 + torch.arange(8)).flatten(1)
    packed = (pack_index_rows(queries), weights, pack_index_rows(pool))
    numbers = (torch.tensor(requests, dtype=torch.int64), visible, entries)
    actual = paged_index_scores(*packed, table, *numbers)
    num_places = (listed < visible[:, None]).sum(1)
    of_listed = listed_index_scores(*packed, table, numbers[0], blocks, num_places, block_size=8)
    assert actual.shape == (count, entries) and of_listed.shape == (count, 24)
    for row, request in enumerate(requests):
        keys = fake_quantize_fp4(pool[table[request]].flatten(0, 1))
        query = fake_quantize_fp4(queries[row])[None, None]
        expected = index_scores_reference(query, weights[row][None, None], keys[None])[0, 0]
        seen = int(visible[row])
        assert_bitwise_equal(actual[row, :seen], expected[:seen])
        there = int(num_places[row])
        assert_bitwise_equal(of_listed[row, :there], expected[listed[row, :there]])


def test_pool_rows_of_entries_and_of_places():
    table = torch.tensor([[5, 2, 7], [0, 3, 1]])
    requests = torch.tensor([1, 0])
    picks = torch.tensor([[0, 4, 11, -1], [3, 8, -1, -1]])
    assert pool_rows(picks, requests, table, 4).tolist() == [[0, 12, 7, -1], [23, 28, -1, -1]]
    blocks = torch.tensor([[1, 4, -1], [0, 2, 5]])
    places = torch.tensor([[1, 2, 3, -1], [0, 3, 5, -1]])  # entries 3, 8, 9 and 0, 5, 11
    rows = pool_rows(places, requests, table, 4, blocks, block_size=2)
    assert rows.tolist() == [[3, 4, 5, -1], [20, 9, 31, -1]]
