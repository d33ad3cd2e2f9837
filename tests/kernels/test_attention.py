"""Sparse attention against a dense fp64 softmax, at its edges, and against the batch around it."""

from __future__ import annotations

import math

import pytest
import torch

from deepinfer.kernels.attention import reference, sparse_attention
from deepinfer.kernels.quant import (
    pack_main_rows,
    pack_window_rows,
    unpack_main_rows,
    unpack_window_rows,
)
from deepinfer.kernels.testing import assert_bitwise_equal, assert_close

H, D = 4, 64


def normal(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def make_case(num_queries, window, picks, seed=0, absent=0.3):
    """q, window rows, window index, main rows, main index, sink."""
    generator = torch.Generator().manual_seed(seed)
    index = torch.randint(0, 90, (num_queries, window + picks), generator=generator)
    index[torch.rand(index.shape, generator=generator) < absent] = -1
    return (
        normal(num_queries, H, D, seed=seed + 1),
        pack_window_rows(normal(100, D, seed=seed + 2)),
        index[:, :window],
        pack_main_rows(normal(5000, D, seed=seed + 3)),
        index[:, window:],
        torch.randn(H, generator=generator),
    )


def oracle(q, window_rows, window_index, main_rows, main_index, sink, scale):
    """One query, one head at a time, in fp64."""
    out = torch.zeros(q.shape, dtype=torch.float64)
    window, main = unpack_window_rows(window_rows).double(), unpack_main_rows(main_rows).double()
    for t in range(len(q)):
        keys = torch.cat(
            [window[window_index[t][window_index[t] >= 0]], main[main_index[t][main_index[t] >= 0]]]
        )
        for h in range(H):
            scores = keys @ q[t, h].double() * scale
            weights = torch.softmax(torch.cat([scores, sink[h : h + 1].double()]), 0)[:-1]
            out[t, h] = weights @ keys
    return out


@pytest.mark.parametrize("num_queries, window, picks", [(1, 8, 16), (7, 128, 64), (3, 5, 1)])
def test_matches_a_dense_softmax(num_queries, window, picks):
    case = make_case(num_queries, window, picks)
    out = sparse_attention(*case, D**-0.5)
    assert_close(out.double(), oracle(*case, D**-0.5), atol=8e-3, rtol=2**-7)


@pytest.mark.parametrize("window, picks", [(8, 16), (5, 1)])
def test_lse_is_that_of_the_keys_alone(window, picks):
    q, rows, index, main, main_index, sink = make_case(3, window, picks)
    index[1], main_index[1] = -1, -1
    lse = torch.full((3, H), math.nan)
    plain = sparse_attention(q, rows, index, main, main_index, sink, 0.125)
    out = sparse_attention(q, rows, index, main, main_index, sink, 0.125, lse=lse)
    assert_bitwise_equal(out, plain)
    window_keys, main_keys = unpack_window_rows(rows).double(), unpack_main_rows(main).double()
    for t in (0, 2):
        listed = index[t][index[t] >= 0], main_index[t][main_index[t] >= 0]
        keys = torch.cat([window_keys[listed[0]], main_keys[listed[1]]])
        expected = (q[t].double() @ keys.T * 0.125).logsumexp(1)
        assert_close(lse[t].double(), expected, atol=1e-6, rtol=8.01 / 65536)
    assert bool((lse[1] == math.inf).all())


def test_a_norm_of_queries_is_that_of_each_head():
    """Only the rounding of scaled queries is left out: powers of two have none."""
    case = make_case(3, 16, 16)
    q = torch.randn(3, H, D).sign().bfloat16()  # of unit root mean square
    scaled = q * torch.tensor([2.0, 0.125, 64.0, 1.0]).bfloat16()[:, None]
    expected, lse = torch.empty(2, 3, H)
    out = sparse_attention(scaled, *case[1:], 0.125, q_norm_eps=1e-20, lse=lse)
    assert_bitwise_equal(out, sparse_attention(q, *case[1:], 0.125, lse=expected))
    assert_bitwise_equal(lse, expected)


def test_a_norm_of_queries_of_zeros_gives_the_mean():
    q, *case = make_case(2, 8, 8)
    zeros = torch.zeros_like(q)
    out = sparse_attention(zeros, *case, 0.125, q_norm_eps=1e-20)
    assert_bitwise_equal(out, sparse_attention(zeros, *case, 0.125))


def test_window_only():
    q, rows, index, main, _, sink = make_case(5, 20, 3)
    nothing = torch.full((5, 3), -1)
    with_empty = sparse_attention(q, rows, index, main, nothing, sink, 0.125)
    assert_close(
        sparse_attention(q, rows, index, None, None, sink, 0.125), with_empty, atol=1e-6, rtol=2**-7
    )


def test_no_queries():
    q, rows, index, main, picks, sink = make_case(0, 8, 8)
    assert sparse_attention(q, rows, index, main, picks, sink, 0.125).shape == (0, H, D)


@pytest.mark.parametrize("sink_value", [None, math.inf, -math.inf])
def test_a_query_without_rows_gives_zero(sink_value):
    q, rows, index, main, picks, sink = make_case(3, 8, 8)
    index[1], picks[1] = -1, -1
    if sink_value is not None:
        sink = torch.full((H,), sink_value)
    out = sparse_attention(q, rows, index, main, picks, sink, 0.125)
    assert not out[1].any()
    assert bool(out.isfinite().all())


def test_sink_of_infinity_takes_all_and_of_minus_infinity_nothing():
    case = make_case(3, 8, 8)
    everything = sparse_attention(*case[:5], torch.full((H,), math.inf), 0.125)
    assert not everything.any()
    nothing = sparse_attention(*case[:5], torch.full((H,), -math.inf), 0.125)
    expected = oracle(*case[:5], torch.full((H,), -1e9), 0.125)
    assert_close(nothing.double(), expected, atol=8e-3, rtol=2**-7)


def test_a_row_listed_twice_counts_twice():
    """Recent tokens are attended as window row and as compressed row; nothing merges them."""
    q, rows, _, main, _, _ = make_case(1, 1, 1)
    sink = torch.zeros(H)
    once = torch.tensor([[3]])
    twice = torch.tensor([[3, 3]])
    out = sparse_attention(q, rows, twice, main, torch.full((1, 1), -1), sink, 0.125)
    expected = oracle(q, rows, twice, main, torch.full((1, 1), -1), sink, 0.125)
    assert_close(out.double(), expected, atol=8e-3, rtol=2**-7)
    assert not torch.equal(
        out, sparse_attention(q, rows, once, main, torch.full((1, 1), -1), sink, 0.125)
    )


def test_large_scores_do_not_overflow():
    q, rows, index, main, picks, sink = make_case(4, 8, 8)
    out = sparse_attention(q * 1000, rows, index, main, picks, sink, 1.0)
    assert bool(out.isfinite().all())


@pytest.mark.parametrize("many", [False, True])
def test_unlisted_rows_cannot_matter(many):
    """Neither what another request stored there, nor a NaN in it; row 0 stands in for index -1."""
    q, rows, index, main, picks, sink = make_case(30 if many else 2, 8, 8)
    index[index == 0], picks[picks == 0] = 1, 1
    rows[90:], main[90:] = 0, 0
    expected = sparse_attention(q, rows, index, main, picks, sink, 0.125)
    poison = torch.full((1, D), math.nan).bfloat16()
    for place in (0, 95):
        rows[place], main[place] = pack_window_rows(poison)[0], pack_main_rows(poison)[0]
    assert_bitwise_equal(sparse_attention(q, rows, index, main, picks, sink, 0.125), expected)


@pytest.mark.parametrize("window, picks", [(8, 16), (128, 64), (133, 0)])
def test_a_query_does_not_depend_on_the_batch(window, picks):
    q, rows, index, main, main_index, sink = make_case(40, window, picks)

    def attend(part):
        return sparse_attention(q[part], rows, index[part], main, main_index[part], sink, 0.125)

    whole = attend(slice(None))
    for first, count in ((0, 1), (7, 2), (11, 9), (3, 30)):
        part = slice(first, first + count)
        assert_bitwise_equal(attend(part), whole[part])


def test_tiles_change_nothing(monkeypatch):
    case = make_case(50, 16, 16)
    whole = sparse_attention(*case, 0.125)
    monkeypatch.setattr(reference, "CACHE_ELEMENTS", 3 * 32 * D)
    assert_bitwise_equal(sparse_attention(*case, 0.125), whole)
