"""Confidence of drafts: Triton against the reference, and against itself in other batches."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from deepinfer.kernels.dspark.reference import draft_confidence_reference
from deepinfer.kernels.dspark.triton_kernel import draft_confidence_triton
from deepinfer.kernels.gemm import Weight
from deepinfer.kernels.testing import assert_bitwise_equal, assert_close

Case = tuple[Tensor, Tensor, Tensor, Tensor, Weight]


def _case(
    requests: int, depth: int, width: int, rank: int, dtype: torch.dtype, device: torch.device
) -> Case:
    """Tokens of 9, of which some are -1: what a row without usable logits draws."""
    proj = torch.randn(1, width + rank) / (width + rank) ** 0.5
    return (
        torch.randn(requests, depth, width).bfloat16().to(device),
        torch.randint(-1, 9, (requests,)).to(device),
        torch.randint(-1, 9, (requests, depth)).to(device),
        torch.randn(9, rank).bfloat16().to(device),
        Weight(proj.to(dtype).to(device)),
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    "requests, depth, width, rank",
    [(2, 5, 5120, 256), (3, 1, 96, 6), (1, 4, 2, 2), (7, 3, 2050, 32), (0, 5, 64, 8)],
)
def test_matches_reference(
    requests: int, depth: int, width: int, rank: int, dtype: torch.dtype, device: torch.device
) -> None:
    case = _case(requests, depth, width, rank, dtype, device)
    out = draft_confidence_triton(*case)
    assert_close(out, draft_confidence_reference(*case), atol=1e-6, rtol=1e-5)


def test_requests_do_not_see_each_other(device: torch.device) -> None:
    hidden, anchors, drafts, embed, proj = _case(5, 3, 96, 6, torch.bfloat16, device)
    hidden[1] = math.nan
    together = draft_confidence_triton(hidden, anchors, drafts, embed, proj)
    for request in range(5):
        one = slice(request, request + 1)
        alone = draft_confidence_triton(hidden[one], anchors[one], drafts[one], embed, proj)
        assert_bitwise_equal(alone[0], together[request], f"{request=}")
    assert bool(together.isnan().all(1).eq(torch.arange(5, device=device) == 1).all())


def test_certain_and_impossible_drafts(device: torch.device) -> None:
    hidden, anchors, drafts, embed, proj = _case(2, 2, 64, 8, torch.float32, device)
    proj.values.fill_(100)
    hidden[0], hidden[1] = 100, -100
    out = draft_confidence_triton(hidden, anchors, drafts, embed, proj)
    assert out.tolist() == [[1, 1], [0, 0]]
