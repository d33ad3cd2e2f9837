"""Weights prepared for the Gluon kernels of SM90 are the same numbers in another layout."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from deepinfer.errors import TensorError
from deepinfer.kernels.gemm import HopperWeight, Weight, quantized_linear
from deepinfer.kernels.gemm.hopper_weights import (
    prepare_gate_up,
    prepare_weight,
    recast_weight,
)
from deepinfer.kernels.gemm.k_order import KOrder, fragment_order
from deepinfer.kernels.moe import experts
from deepinfer.kernels.testing import assert_bitwise_equal


def _fp4(*shape: int, spread: int) -> Weight:
    *members, n, k = shape
    values = torch.randint(-128, 128, (*members, n, k // 2), dtype=torch.int8)
    scales = torch.randint(100, 101 + spread, (*members, n, k // 32), dtype=torch.uint8)
    return Weight(values, scales.view(torch.float8_e8m0fnu))


def _fp8(n: int, k: int, spread: int) -> Weight:
    values = torch.randn(n, k).mul(100).clamp(-448, 448).to(torch.float8_e4m3fn)
    scales = torch.randint(100, 101 + spread, (n // 32, k // 32), dtype=torch.uint8)
    return Weight(values, scales.view(torch.float8_e8m0fnu))


def _prepared(weight: Weight) -> HopperWeight:
    prepared = prepare_weight(weight)
    assert prepared is not None
    return prepared


def _numbers(weight: HopperWeight) -> Tensor:
    """[E N, K] f32 in the order of ``weight``."""
    values = recast_weight(weight).values if weight.exponents is not None else weight.values
    return values.float() * weight.row_scales[: len(values), None]


def test_fp4_is_exact_while_scales_span_11_steps() -> None:
    weight = _fp4(2, 128, 512, spread=11)
    prepared = _prepared(weight)
    assert (prepared.num_rows, prepared.k, prepared.members) == (128, 512, 2)
    assert prepared.order is KOrder.FRAGMENT
    assert prepared.values.nbytes == weight.values.nbytes
    exact = fragment_order(weight.dense.float().view(256, 512))
    assert_bitwise_equal(_numbers(prepared), exact)
    assert_bitwise_equal(prepared.plain.values, weight.dense)


def test_recast_goes_member_by_member() -> None:
    """More members than are recast at a time are in their places."""
    prepared = _prepared(_fp4(17, 64, 256, spread=5))
    assert prepared.exponents is not None
    whole = recast_weight(prepared).values.view(17, 64, 256)
    last = _prepared_member(prepared, 16)
    assert torch.equal(whole[16].view(torch.uint8), recast_weight(last).values.view(torch.uint8))


def _prepared_member(weight: HopperWeight, member: int) -> HopperWeight:
    n = weight.num_rows
    assert weight.exponents is not None
    return HopperWeight(
        weight.values[member * n : (member + 1) * n],
        weight.exponents[member * n // 64 : (member + 1) * n // 64],
        torch.cat([weight.row_scales[member * n : (member + 1) * n], weight.row_scales[-256:]]),
        1,
        weight.order,
    )


@pytest.mark.parametrize("form", ["fp4", "fp8"])
def test_gates_and_ups_alternate(form: str) -> None:
    """64 rows of either at a time; the plain numbers are in the order of the file again."""
    weight = _fp4(2, 512, 256, spread=5) if form == "fp4" else _fp8(512, 256, spread=3)
    prepared = prepare_gate_up(weight)
    assert prepared is not None and prepared.is_gated
    halves = _prepared(weight)
    assert_bitwise_equal(prepared.plain.values, halves.plain.values)
    rows = torch.arange(512).view(2, 4, 64).transpose(0, 1).flatten()
    rows = torch.cat([rows + 512 * member for member in range(prepared.members)])
    assert_bitwise_equal(_numbers(prepared), _numbers(halves)[rows])
    if prepared.exponents is not None:
        assert recast_weight(prepared).is_gated


def test_gates_of_other_widths_stay_as_they_are() -> None:
    prepared = prepare_gate_up(_fp8(384, 256, spread=3))
    assert prepared is not None and not prepared.is_gated
    assert prepare_gate_up(Weight(torch.zeros(512, 256, dtype=torch.bfloat16))) is None


def test_fp4_below_11_steps_counts_as_0() -> None:
    weight = _fp4(64, 256, spread=40)
    exact = fragment_order(weight.dense.float())
    assert weight.scales is not None
    exponents = weight.scales.view(torch.uint8).int()
    is_kept = (exponents >= exponents.amax(1, keepdim=True) - 11).repeat_interleave(32, 1)
    kept = fragment_order(is_kept.float())
    assert torch.equal(_numbers(_prepared(weight)), exact * kept)


def test_fp8_keeps_what_counts_in_a_row() -> None:
    weight = _fp8(96, 256, spread=12)
    assert prepare_weight(weight) is None, "96 rows are not whole tiles of 64"
    weight = _fp8(128, 512, spread=12)
    prepared = _prepared(weight)
    assert prepared.order is KOrder.PLAIN
    exact, numbers = weight.dense.float(), _numbers(prepared)
    top = prepared.row_scales[:128, None]
    assert bool(((numbers - exact).abs() <= top * 2.0**-10).all())
    large = exact.abs() >= top * 2.0**-6
    assert_bitwise_equal(numbers[large], exact[large])


def test_fp8_of_a_few_steps_is_exact_but_for_the_smallest() -> None:
    weight = _fp8(64, 256, spread=3)
    exact, numbers = weight.dense.float(), _numbers(_prepared(weight))
    assert float((numbers - exact).norm() / exact.norm()) < 1e-5


@pytest.mark.parametrize("shape", [(64, 128), (32, 256), (64, 160)])
def test_sizes_that_do_not_fit_are_left_alone(shape: tuple[int, int]) -> None:
    assert prepare_weight(_fp4(*shape, spread=2)) is None
    assert prepare_weight(Weight(torch.zeros(64, 256, dtype=torch.bfloat16))) is None


def test_fragment_order_gives_a_thread_its_block() -> None:
    """Thread t of matrix instruction i reads 4 t + j and 16 + 4 t + j of 32: from block t."""
    order = fragment_order(torch.arange(256.0))
    for group in range(2):
        for i in range(4):
            for t in range(4):
                start = 128 * group + 32 * i + 4 * t
                read = torch.cat([order[start : start + 4], order[start + 16 : start + 20]])
                first = 128 * group + 32 * t + 8 * i
                assert read.tolist() == list(range(first, first + 8))


def test_layers_on_prepared_weights_are_the_same_on_a_cpu() -> None:
    """What a GPU's model is compared with, on weights moved to the CPU."""
    x = torch.randn(5, 256).to(torch.bfloat16)
    gate_up, down = _fp4(3, 512, 256, spread=4), _fp4(3, 256, 256, spread=4)
    linear = Weight(gate_up.values[1], None if gate_up.scales is None else gate_up.scales[1])
    assert_bitwise_equal(quantized_linear(x, _prepared(linear)), quantized_linear(x, linear))
    ids, weights = torch.tensor([[0, 2]] * 5), torch.rand(5, 2)
    expected = experts(x, ids, weights, gate_up, down, 10.0)
    actual = experts(x, ids, weights, _prepared(gate_up), _prepared(down), 10.0)
    assert_bitwise_equal(actual, expected)
    with pytest.raises(TensorError, match="only one of gate_up and down"):
        experts(x, ids, weights, _prepared(gate_up), down, 10.0)
