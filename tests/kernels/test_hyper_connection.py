"""Hyper-connections: coefficients, collapse and expansion."""

from __future__ import annotations

import pytest
import torch

from deepinfer.kernels.gemm import Weight
from deepinfer.kernels.hyper_connection import (
    HyperMix,
    Mixer,
    collapse_streams,
    expand_streams,
)
from deepinfer.kernels.hyper_connection.reference import hyper_mix_reference
from deepinfer.kernels.testing import assert_bitwise_equal, assert_close

S, D = 4, 96


def normal(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def mix(streams, fn_scale=1.0):
    fn = Weight(normal(S * (2 + S), S * D, seed=1) * fn_scale)
    base = normal(S * (2 + S), seed=2)
    scale = torch.tensor([1.0, 0.5, 2.0])
    return hyper_mix_reference(streams, Mixer(fn, scale, base, iterations=20, eps=1e-6))


def test_coefficients_follow_the_definition():
    streams = normal(9, S, D, seed=3).bfloat16()
    fn, base = normal(24, S * D, seed=1).double(), normal(24, seed=2).double()
    x = streams.flatten(1).double()
    m = (x @ fn.t()) / (x.square().mean(-1, keepdim=True) + 1e-20).sqrt()
    result = mix(streams)
    pre = torch.sigmoid(m[:, :4] + base[:4]) + 1e-6
    post = 2 * torch.sigmoid(m[:, 4:8] * 0.5 + base[4:8])
    comb = torch.softmax((m[:, 8:] * 2 + base[8:]).view(-1, 4, 4), -1) + 1e-6
    comb = comb / (comb.sum(1, keepdim=True) + 1e-6)
    for _ in range(19):
        comb = comb / (comb.sum(2, keepdim=True) + 1e-6)
        comb = comb / (comb.sum(1, keepdim=True) + 1e-6)
    for actual, expected in zip(result, (pre, post, comb), strict=True):
        assert_close(actual.double(), expected, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("fn_scale", [0.0, 1.0, 30.0])
def test_comb_is_nearly_doubly_stochastic(fn_scale):
    """Columns exactly (they come last); rows as far as 20 rounds get with harsh logits."""
    comb = mix(normal(50, S, D, seed=4).bfloat16(), fn_scale).comb
    assert bool((comb >= 0).all())
    assert_close(comb.sum(1), torch.ones(50, S), atol=1e-4, rtol=0)
    if fn_scale < 10:
        assert_close(comb.sum(2), torch.ones(50, S), atol=0.1, rtol=0)


def test_one_hot_collapse_picks_a_stream():
    streams = normal(5, S, D, seed=5).bfloat16()
    pre = torch.zeros(5, S)
    pre[:, 2] = 1.0
    assert_bitwise_equal(collapse_streams(streams, pre), streams[:, 2])


def test_expand_mixes_from_rows_to_columns():
    """comb[i, j] carries stream i into stream j: a shift shows the direction."""
    streams, output = normal(3, S, D, seed=6).bfloat16(), normal(3, D, seed=7).bfloat16()
    shift = torch.eye(S).roll(1, dims=1).expand(3, S, S)
    moved = expand_streams(streams, output, HyperMix(torch.ones(3, S), torch.zeros(3, S), shift))
    assert_bitwise_equal(moved, streams.roll(1, dims=1))
    mixed = mix(streams)
    expected = torch.einsum("tij,tid->tjd", mixed.comb.double(), streams.double())
    expected += mixed.post.double()[..., None] * output.double()[:, None]
    assert_close(expand_streams(streams, output, mixed).double(), expected, atol=1e-5, rtol=2**-7)


def test_tokens_do_not_depend_on_the_batch():
    streams = normal(70, S, D, seed=8).bfloat16()
    whole = mix(streams)
    for first, count in ((0, 1), (3, 2), (9, 13), (5, 64)):
        part = slice(first, first + count)
        for actual, expected in zip(mix(streams[part]), whole, strict=True):
            assert_bitwise_equal(actual, expected[part])
        output = streams[part, 0]
        assert_bitwise_equal(
            expand_streams(streams[part], output, mix(streams[part])),
            expand_streams(streams, streams[:, 0], whole)[part],
        )


def test_no_tokens():
    empty = torch.zeros(0, S, D).bfloat16()
    assert mix(empty).comb.shape == (0, S, S)
    assert collapse_streams(empty, torch.zeros(0, S)).shape == (0, D)
