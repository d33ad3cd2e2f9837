"""Index scores, top-k and sampling on a GPU against the references, at full size."""

from __future__ import annotations

import pytest
import torch

from deepinfer.bench.kernels.indexer import paged_case
from deepinfer.bench.kernels.sampling import sampling_case
from deepinfer.kernels.indexer import paged_index_scores
from deepinfer.kernels.indexer.paged import paged_index_scores_reference
from deepinfer.kernels.indexer.reference import candidate_blocks_reference, select_topk_reference
from deepinfer.kernels.indexer.triton_select import candidate_blocks_triton, select_topk_triton
from deepinfer.kernels.sampling.reference import exponential_noise, sample
from deepinfer.kernels.sampling.triton_kernel import exponential_noise_triton, sample_triton

_VOCABULARY = 129_280

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("requests, queries", [(3, 6), (5, 1), (1, 100)])
def test_scores(requests: int, queries: int) -> None:
    case = paged_case(requests, queries, 1024)
    actual, expected = paged_index_scores(**case), paged_index_scores_reference(**case)
    differing = float((actual != expected).float().mean())
    a, e = actual.double(), expected.double()
    error = float((a - e).norm() / e.norm())
    assert error < 1e-3 and differing < 0.05, f"error {error:.1e}, {differing:.2%} differ"


@pytest.mark.parametrize("kind", ("normal", "ties", "few values"))
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float32))
def test_topk(kind: str, dtype: torch.dtype) -> None:
    scores = torch.randn(9, 131_072, device="cuda")
    if kind == "ties":
        scores = (scores * 4).round()
    if kind == "few values":
        scores = (scores > 3).float()
    scores = scores.to(dtype)
    visible = torch.tensor([131_072, 0, 1, 511, 512, 513, 70_000, 8192, 8193], device="cuda")
    expected = select_topk_reference(scores, visible, 512)
    assert torch.equal(select_topk_triton(scores, visible, 512), expected), "selection differs"


def test_blocks() -> None:
    scores = torch.randn(5, 100_001, device="cuda").bfloat16()
    visible = torch.tensor([100_001, 100_000, 1, 50_003, 20_000], device="cuda")
    expected = candidate_blocks_reference(scores, visible, 8, 2048)
    assert torch.equal(candidate_blocks_triton(scores, visible, 8, 2048), expected), "blocks differ"


def test_noise() -> None:
    seeds = torch.randint(-(2**62), 2**62, (4,), device="cuda")
    positions = torch.arange(4, device="cuda")
    actual = exponential_noise_triton(seeds, positions, _VOCABULARY)
    error = float((actual / exponential_noise(seeds, positions, _VOCABULARY) - 1).abs().max())
    error_cpu = float(
        (actual.cpu() / exponential_noise(seeds.cpu(), positions.cpu(), _VOCABULARY) - 1)
        .abs()
        .max()
    )
    assert max(error, error_cpu) < 4e-7, f"{error:.1e}, {error_cpu:.1e} from the CPU"


@pytest.mark.parametrize("temperature, top_p", [(0.0, 1.0), (1.0, 1.0), (0.7, 0.9)])
def test_sample(temperature: float, top_p: float) -> None:
    case = sampling_case(64, temperature, top_p)
    same = int((sample_triton(*case) == sample(*case)).sum())
    assert same == 64, f"{64 - same} of 64 tokens differ"
