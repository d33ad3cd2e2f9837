"""Norm, rotary embedding, activations: oracles, and independence of an element's place."""

from __future__ import annotations

import math

import pytest
import torch

from deepinfer.kernels.norm import rms_norm
from deepinfer.kernels.numeric import batched_matmul, sigmoid, silu, softplus
from deepinfer.kernels.rope import apply_rope, rope_frequencies, rope_table
from deepinfer.kernels.testing import assert_bitwise_equal, assert_close


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("function", [sigmoid, silu, softplus, torch.exp])
def test_place_in_a_tensor_does_not_matter(function):
    x = normal(70001) * 8
    whole = function(x)
    for count in (1, 3, 7, 15, 31, 33, 100, 4097):
        for first in (0, 1, 5, 1000, 65000):
            part = x[first : first + count].clone()
            assert_bitwise_equal(function(part), whole[first : first + count])


@pytest.mark.parametrize("heads, width, keys", [(4, 64, 24), (8, 96, 133), (6, 64, 11)])
@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_a_product_is_the_same_alone_in_a_batch_and_in_threads(heads, width, keys, num_threads):
    a, b = normal(20, heads, width), normal(20, width, keys, seed=1)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    whole = batched_matmul(a, b)
    torch.set_num_threads(num_threads)
    try:
        for count in (1, 2, 3, 20):
            assert_bitwise_equal(batched_matmul(a[:count], b[:count]), whole[:count])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("function, oracle", [
    (sigmoid, torch.sigmoid), (silu, torch.nn.functional.silu),
    (softplus, torch.nn.functional.softplus),
])  # fmt: skip
def test_activations_match_torch(function, oracle):
    x = torch.cat([normal(1000) * 10, torch.tensor([-200.0, -90.0, 0.0, 20.0, 21.0, 200.0])])
    assert_close(function(x), oracle(x.double()).float(), atol=1e-30, rtol=3e-6)


@pytest.mark.parametrize("rows, width", [(1, 128), (7, 96), (0, 64), (3, 20480)])
def test_rms_norm(rows, width):
    x, weight = (normal(rows, width) * 3).bfloat16(), normal(width, seed=1).bfloat16()
    wide = x.double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()
    assert_close(rms_norm(x, weight, 1e-6).double(), expected, atol=1e-9, rtol=2**-8)


@pytest.mark.parametrize("width", [24, 96, 512, 5120, 20480])
def test_rms_norm_rows_do_not_depend_on_the_batch(width):
    x, weight = normal(40, width).bfloat16(), normal(width, seed=1).bfloat16()
    whole = rms_norm(x, weight, 1e-20)
    for rows in (1, 2, 7, 31):
        assert_bitwise_equal(rms_norm(x[3 : 3 + rows], weight, 1e-20), whole[3 : 3 + rows])


def test_rms_norm_of_zeros_is_zero():
    assert not rms_norm(torch.zeros(2, 64).bfloat16(), torch.ones(64), 1e-20).any()


def test_released_frequencies():
    """Check values of the released long-context table (theta 160000, YaRN 16 from 65536)."""
    table = rope_frequencies(64, 160000.0, yarn_factor=16.0, original_max_position=65536)
    expected = {0: 1.0, 1: 0.68765602, 15: 0.0036355386, 16: 0.002265625,
                20: 2.9697778e-4, 25: 5.3723127e-6, 31: 5.680529e-7}  # fmt: skip
    for pair, value in expected.items():
        assert math.isclose(float(table[pair]), value, rel_tol=2e-6)


def test_rotation_turns_adjacent_pairs():
    frequencies = rope_frequencies(8, 10000.0)
    positions = torch.tensor([0, 3, 1000])
    x = normal(3, 5, 12).bfloat16()
    turned = apply_rope(x, *rope_table(frequencies, positions))
    assert_bitwise_equal(turned[..., :4], x[..., :4])
    assert_bitwise_equal(turned[0], x[0])
    angle = positions.double()[:, None] * frequencies.double()
    numbers = torch.view_as_complex(x[..., 4:].double().reshape(3, 5, 4, 2).contiguous())
    expected = numbers * torch.polar(torch.ones_like(angle), angle)[:, None]
    real = torch.view_as_real(expected).flatten(2)
    assert_close(turned[..., 4:].double(), real, atol=1e-3, rtol=2**-7)


def test_inverse_turns_back():
    tables = rope_table(rope_frequencies(16, 10000.0), torch.arange(50))
    x = normal(50, 3, 32).bfloat16()
    back = apply_rope(apply_rope(x, *tables), *tables, inverse=True)
    assert_close(back, x, atol=0.03, rtol=2**-6)


def test_tables_do_not_depend_on_the_batch():
    frequencies = rope_frequencies(64, 160000.0, yarn_factor=16.0, original_max_position=65536)
    positions = torch.arange(100_000, 100_200)
    whole = rope_table(frequencies, positions)
    for count in (1, 3, 50):
        part = rope_table(frequencies, positions[7 : 7 + count])
        for a, b in zip(part, whole, strict=True):
            assert_bitwise_equal(a, b[7 : 7 + count])
