"""Linears against fp64, and the promise that a row's bits do not depend on the batch."""

from __future__ import annotations

import pytest
import torch

from deepinfer.kernels.gemm import Weight, fp32_linear, grouped_linear, linear, quantized_linear
from deepinfer.kernels.gemm import reference as gemm
from deepinfer.kernels.quant import fake_quantize_fp8
from deepinfer.kernels.testing import assert_bitwise_equal, assert_close

SHAPES = [(128, 96), (1024, 24), (256, 1000), (512, 257), (64, 1)]
ROWS = (1, 2, 3, 5, 7, 8, 9, 15, 17, 33, 64, 127, 200)


def random_weight(n, k, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return Weight((torch.randn(n, k, generator=generator) / k**0.5).bfloat16())


def random_rows(m, k, seed=1):
    return torch.randn(m, k, generator=torch.Generator().manual_seed(seed)).bfloat16()


@pytest.fixture(params=["bf16", "fp32"])
def both_ways(request, monkeypatch):
    """Run the bf16 linears by either kind of matmul, whatever this CPU would choose."""
    monkeypatch.setattr(gemm, "_cpu_has_bf16", lambda: request.param == "bf16")


@pytest.fixture(params=[1, 2, 5])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("k, n", SHAPES)
@pytest.mark.parametrize("function", [linear, fp32_linear])
def test_rows_depend_neither_on_the_batch_nor_on_threads(both_ways, threads, function, k, n):
    weight, x = random_weight(n, k), random_rows(300, k)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    whole = function(x, weight)
    torch.set_num_threads(before)
    for rows in ROWS:
        for first in (0, 61):
            part = function(x[first : first + rows], weight)
            assert_bitwise_equal(part, whole[first : first + rows], f"{rows} rows")


def test_both_matmuls_agree_to_one_rounding(monkeypatch):
    weight, x = random_weight(200, 256), random_rows(64, 256)
    results = []
    for has_bf16 in (True, False):
        monkeypatch.setattr(gemm, "_cpu_has_bf16", lambda has=has_bf16: has)
        results.append(linear(x, weight))
    assert_close(results[0], results[1], atol=1e-6, rtol=2**-7)
    assert float((results[0] == results[1]).double().mean()) > 0.99


@pytest.mark.parametrize("m", [0, 1, 7, 70])
def test_linear_is_the_rounded_product(both_ways, m):
    weight, x = random_weight(40, 96), random_rows(m, 96)
    expected = x.double() @ weight.values.double().t()
    assert_close(linear(x, weight).double(), expected, atol=1e-4, rtol=2**-8)
    assert_close(fp32_linear(x, weight).double(), expected, atol=1e-5, rtol=1e-5)


def test_quantized_linear_rounds_its_input_first():
    weight, x = random_weight(40, 96), random_rows(9, 96)
    assert_bitwise_equal(quantized_linear(x, weight), linear(fake_quantize_fp8(x), weight))
    assert not torch.equal(quantized_linear(x, weight), linear(x, weight))


def test_grouped_linear_uses_each_groups_weight(both_ways):
    weight = random_weight(3 * 32, 64)
    x = random_rows(5 * 3, 64).view(5, 3, 64)
    grouped = grouped_linear(x, weight.split_rows(3))
    for group in range(3):
        own = Weight(weight.values[32 * group : 32 * (group + 1)])
        assert_bitwise_equal(grouped[:, group], linear(x[:, group], own))


def test_groups_of_fp8_activations_are_rounded_first(both_ways):
    weight = random_weight(3 * 32, 64).split_rows(3)
    x = random_rows(5 * 3, 64).view(5, 3, 64)
    rounded = grouped_linear(x, weight, fp8=True)
    assert_bitwise_equal(rounded, grouped_linear(fake_quantize_fp8(x), weight))
    assert not torch.equal(rounded, grouped_linear(x, weight))


def test_concat_and_stack_keep_scales():
    values = [torch.full((32, 32), v).to(torch.float8_e4m3fn) for v in (1.0, 2.0)]
    scales = [torch.tensor([[e]], dtype=torch.uint8).view(torch.float8_e8m0fnu) for e in (126, 128)]
    members = [Weight(v, s) for v, s in zip(values, scales, strict=True)]
    joined = Weight.concat(members).dense
    assert joined[:32].unique().tolist() == [0.5]
    assert joined[32:].unique().tolist() == [4.0]
    assert_bitwise_equal(Weight.stack(members)[1].dense, members[1].dense)
