"""The router in Triton against its reference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from deepinfer.kernels.gemm import Weight
from deepinfer.kernels.moe.reference import route_reference
from deepinfer.kernels.moe.slots import Slots
from deepinfer.kernels.moe.triton_router import route_triton
from deepinfer.kernels.testing import assert_bitwise_equal, assert_close


@pytest.mark.parametrize("rows, experts, per_token", [(1, 128, 3), (50, 64, 6), (5, 20, 3)])
def test_each_choice_takes_a_slot(
    rows: int, experts: int, per_token: int, device: torch.device
) -> None:
    """Twice, since who counts must begin at zero."""
    x = torch.randn(rows, 256, device=device).to(torch.bfloat16)
    gate = Weight((torch.randn(experts, 256, device=device) / 4).to(torch.bfloat16))
    bias = torch.randn(experts, device=device)
    args = {"num_experts_per_tok": per_token, "normalize": True, "scaling_factor": 1.5}
    expected = route_triton(x, gate, bias, **args)  # type: ignore[arg-type]
    slots = Slots.empty(rows, per_token, experts, device)
    slots.total.fill_(12345)
    for _ in range(2):
        slots.slot.fill_(-1)
        ids, weights = route_triton(x, gate, bias, **args, slots=slots)  # type: ignore[arg-type]
        assert_bitwise_equal(ids, expected[0], "ids")
        assert_bitwise_equal(weights, expected[1], "weights")
        counts = torch.bincount(ids.flatten().cpu(), minlength=experts)
        assert slots.total.tolist() == counts.tolist()
        for expert, count in enumerate(counts.tolist()):
            taken = slots.slot[ids == expert].sort().values
            assert taken.tolist() == list(range(count))


def _route(x: Tensor, gate: Weight, bias: Tensor, per_token: int = 6) -> tuple[Tensor, Tensor]:
    args = {"num_experts_per_tok": per_token, "normalize": True, "scaling_factor": 1.5}
    ids, weights = route_triton(x, gate, bias, **args)  # type: ignore[arg-type]
    expected_ids, expected_weights = route_reference(x, gate, bias, **args)  # type: ignore[arg-type]
    assert_bitwise_equal(ids, expected_ids, "ids")
    assert_close(weights, expected_weights, atol=1e-6, rtol=1e-5, what="weights")
    return ids, weights


@pytest.mark.parametrize(
    "rows, experts, per_token", [(1, 384, 6), (7, 20, 3), (5, 6, 6), (0, 8, 2)]
)
@pytest.mark.parametrize("bias_rows", [False, True])
def test_route(
    rows: int, experts: int, per_token: int, bias_rows: bool, device: torch.device
) -> None:
    width = 256 if experts == 20 else 96  # in parts, and in one piece
    x = torch.randn(rows, width, device=device).to(torch.bfloat16)
    gate = Weight((torch.randn(experts, width, device=device) / 4).to(torch.bfloat16))
    bias = torch.randn(*([rows] if bias_rows else []), experts, device=device)
    _route(x, gate, bias, per_token)


def test_ties_go_to_the_lower_expert(device: torch.device) -> None:
    x = torch.ones(2, 32, dtype=torch.bfloat16, device=device)
    x[1] = -0.5
    gate = Weight(torch.ones(16, 32, dtype=torch.bfloat16, device=device))
    bias = torch.zeros(16, device=device)
    bias[9] = 1.0
    ids, weights = _route(x, gate, bias)
    assert ids.tolist() == [[0, 1, 2, 3, 4, 9]] * 2
    assert_close(weights, torch.full_like(weights, 0.25), atol=1e-6, rtol=0.0)


def test_the_best_may_share_a_lane_or_a_score(device: torch.device) -> None:
    """Lanes of a warp hold four neighbours, and those 128 and 256 further on."""
    logits = torch.randn(5, 384).to(torch.bfloat16)
    logits[0, [0, 1, 2, 3, 128, 129, 256]] = torch.arange(7.0).bfloat16() + 5
    logits[1, [4, 5, 6, 200, 300]] = 9.0  # the sixth is alone
    logits[2, 7:300:10] = 9.0
    logits[3] = logits[3].round()
    logits[4] = 0.0
    x = torch.eye(5, 256, device=device).to(torch.bfloat16)
    gate = torch.zeros(384, 256, device=device).to(torch.bfloat16)
    gate[:, :5] = logits.T
    _route(x, Weight(gate), torch.zeros(384, device=device))
    bias = torch.full((384,), float("-inf"), device=device)
    bias[[9, 100]] = -3.0
    ids, _ = _route(x, Weight(gate), bias)
    assert ids.tolist() == [[0, 1, 2, 3, 9, 100]] * 5


@pytest.mark.parametrize("size", [-40.0, -20.0, -1.0, 0.0, 19.9, 20.1, 300.0])
def test_scores_of_large_and_tiny_logits(size: float, device: torch.device) -> None:
    """softplus must neither overflow nor lose what is left of exp(x) beside 1."""
    x = torch.zeros(1, 32, dtype=torch.bfloat16, device=device)
    x[0, 0] = size
    gate = torch.zeros(4, 32, dtype=torch.bfloat16, device=device)
    gate[:, 0] = torch.tensor([1.0, 0.5, 0.75, 0.9])
    args = {"num_experts_per_tok": 2, "normalize": False, "scaling_factor": 1.0}
    bias = torch.zeros(4, device=device)
    _, weights = route_triton(x, Weight(gate), bias, **args)  # type: ignore[arg-type]
    _, expected = route_reference(x, Weight(gate), bias, **args)  # type: ignore[arg-type]
    assert_close(weights, expected, atol=0.0, rtol=2e-5)


def test_a_nan_token_is_routed_somewhere(device: torch.device) -> None:
    x = torch.randn(3, 32, device=device).to(torch.bfloat16)
    x[1] = float("nan")
    gate = Weight(torch.randn(8, 32, device=device).to(torch.bfloat16))
    bias = torch.zeros(8, device=device)
    args = {"num_experts_per_tok": 2, "normalize": True, "scaling_factor": 1.0}
    ids, weights = route_triton(x, gate, bias, **args)  # type: ignore[arg-type]
    assert ids[1].tolist() == [0, 1]
    assert weights.isnan().any(1).tolist() == [False, True, False]
