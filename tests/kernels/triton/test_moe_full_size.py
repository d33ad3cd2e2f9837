"""Mixture of experts on a GPU against the references, at full size."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from deepinfer.bench.kernels.gemm import random_weight
from deepinfer.bench.kernels.moe import expert_case, random_choices
from deepinfer.kernels.gemm.matrix_path import MatrixPath
from deepinfer.kernels.moe import experts, native_experts, route, swiglu
from deepinfer.kernels.moe.reference import experts_reference, route_reference, swiglu_reference
from deepinfer.kernels.moe.triton_kernel import experts_triton
from deepinfer.kernels.testing import assert_bitwise_equal, calc_diff

_WIDTH, _INNER, _EXPERTS, _CHOSEN, _LIMIT = 5120, 2304, 384, 6, 10.0
# Any: they are keyword arguments of different types.
_ROUTING: dict[str, Any] = {
    "num_experts_per_tok": _CHOSEN,
    "normalize": True,
    "scaling_factor": 1.5,
}

pytestmark = pytest.mark.gpu


def test_route() -> None:
    gate = random_weight("bf16", _EXPERTS, _WIDTH)
    bias = torch.randn(_EXPERTS, device="cuda") / 10
    worst, moved = 0.0, 0
    for rows in (1, 5, 1537):
        x = torch.randn(rows, _WIDTH, device="cuda").to(torch.bfloat16)
        ids, weights = route(x, gate, bias, **_ROUTING)
        expected_ids, expected = route_reference(x, gate, bias, **_ROUTING)
        same = (ids == expected_ids).all(1)
        moved += int((~same).sum())
        worst = max(worst, float((weights - expected)[same].abs().max()))
    assert moved <= 3, f"{moved} of 1,543 rows chose other experts (near ties allow a few)"
    assert worst < 1e-4, f"weights differ by {worst:.2e}"


def test_a_token_chooses_the_same_in_any_batch() -> None:
    """On both sides of what decides how the product with the router is made."""
    gate = random_weight("bf16", _EXPERTS, _WIDTH)
    bias = torch.randn(_EXPERTS, device="cuda") / 10
    x = torch.randn(1600, _WIDTH, device="cuda").to(torch.bfloat16)
    x[7] = float("nan")
    ids, weights = route(x, gate, bias, **_ROUTING)
    for rows in (1, 2, 7, 64, 255, 256, 1500):
        some_ids, some_weights = route(x[:rows], gate, bias, **_ROUTING)
        assert torch.equal(some_ids, ids[:rows])
        assert_bitwise_equal(some_weights, weights[:rows], f"{rows} rows")


def test_swiglu() -> None:
    gate_up = (torch.randn(777, 2 * _INNER, device="cuda") * 6).to(torch.bfloat16)
    weights = torch.rand(777, device="cuda")
    diff = calc_diff(swiglu(gate_up, _LIMIT, weights), swiglu_reference(gate_up, _LIMIT, weights))
    assert diff < 1e-6, f"calc_diff {diff:.2e}"


@pytest.mark.parametrize("is_fastest", [True, False])
def test_experts(is_fastest: bool) -> None:
    path = MatrixPath.of(torch.device("cuda")) if is_fastest else MatrixPath.DECODED
    worst = 0.0
    for tokens in (1, 33, 300, 2000):
        x, ids, weights, gate_up, down = expert_case(tokens, 12)
        actual = experts_triton(x, ids, weights, gate_up, down, _LIMIT, path=path)
        expected = experts_reference(x, ids, weights, gate_up, down, _LIMIT)
        worst = max(worst, calc_diff(actual, expected))
    assert worst < 1e-4, f"calc_diff {worst:.2e}"


def test_absent() -> None:
    x, ids, weights, gate_up, down = expert_case(100, 8)
    absent = ids >= 6
    ids = torch.where(absent, -1, ids)
    ids[50] = -1
    actual = experts(x, ids, weights, *native_experts(gate_up, down), _LIMIT)
    expected = experts_reference(
        x, ids.clamp(min=0), weights.masked_fill(ids < 0, 0), gate_up, down, _LIMIT
    )
    diff = calc_diff(actual, expected)
    assert not actual[50].any(), "a token without experts is not zero"
    assert diff < 1e-4, f"calc_diff {diff:.2e}"


def test_bits() -> None:
    x, ids, weights, *packed = expert_case(2000, 12)
    native = native_experts(*packed)

    def run(rows: Tensor) -> Tensor:
        return experts(x[rows], ids[rows], weights[rows], *native, _LIMIT)

    everyone = torch.arange(2000, device="cuda")
    whole = run(everyone)
    for count in (1, 2, 7, 64, 256, 1500):
        same = torch.equal(run(everyone[:count]), whole[:count])
        assert same, f"{count} tokens differ from the same tokens of 2,000"
    shuffled = torch.randperm(2000, device="cuda")
    assert torch.equal(run(shuffled), whole[shuffled]), "another order differs"
    assert torch.equal(run(everyone), whole), "a second run differs"


def test_graph() -> None:
    x, ids, weights, *packed = expert_case(64, 8)
    native = native_experts(*packed)
    experts(x, ids, weights, *native, _LIMIT)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = experts(x, ids, weights, *native, _LIMIT)
    ids.copy_(random_choices(64, 8))
    x.normal_()
    graph.replay()
    same = torch.equal(out, experts(x, ids, weights, *native, _LIMIT))
    assert same, "the replayed graph differs from a direct run"
