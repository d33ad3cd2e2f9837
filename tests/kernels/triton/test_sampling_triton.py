"""Seeded sampling: Triton against the reference, token for token."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from deepinfer.errors import TensorError
from deepinfer.kernels.sampling.reference import exponential_noise, sample
from deepinfer.kernels.sampling.triton_kernel import exponential_noise_triton, sample_triton
from deepinfer.kernels.testing import assert_bitwise_equal, assert_close


def _seeds(device: torch.device, rows: int) -> tuple[Tensor, Tensor]:
    seeds = torch.randint(-(2**62), 2**62, (rows,))
    seeds[: min(rows, 2)] = torch.tensor([-1, 2**63 - 1])[:rows]
    return seeds.to(device), torch.arange(rows, device=device) * 7919


def _parameters(
    device: torch.device,
    rows: int,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
    min_p: float = 0.0,
) -> tuple[Tensor, ...]:
    floats = [torch.full((rows,), value, device=device) for value in (temperature, top_p, min_p)]
    counts = torch.full((rows,), top_k, device=device)
    return floats[0], floats[1], counts, floats[2], *_seeds(device, rows)


@pytest.mark.parametrize("rows, vocab_size", [(3, 5000), (1, 1), (0, 10)])
def test_noise(rows: int, vocab_size: int, device: torch.device) -> None:
    seeds = _seeds(device, rows)
    actual = exponential_noise_triton(*seeds, vocab_size)
    expected = exponential_noise(*seeds, vocab_size)
    assert_close(actual, expected, atol=0, rtol=2.5e-7)
    assert bool((actual > 0).all())


@pytest.mark.parametrize(
    "filters",
    [
        {},
        {"temperature": 0.0},
        {"temperature": 0.3},
        {"temperature": 1.5, "top_p": 0.9},
        {"top_p": 0.1},
        {"top_p": 1e-300},
        {"top_k": 1},
        {"top_k": 40, "top_p": 0.95},
        {"min_p": 0.1},
        {"temperature": 2.0, "min_p": 0.02, "top_k": 100, "top_p": 0.99},
    ],
    ids=str,
)
def test_same_tokens(filters: dict[str, float], device: torch.device) -> None:
    logits = torch.randn(9, 777, device=device) * 2
    logits[::3] = logits[::3].round()  # equal logits
    parameters = _parameters(device, len(logits), **filters)
    assert_bitwise_equal(sample_triton(logits, *parameters), sample(logits, *parameters))


@pytest.mark.parametrize(
    "filters",
    [
        {"top_k": 3},
        {"top_k": 3, "top_p": 0.7, "min_p": 0.2},
        {"top_p": 0.002},
        {"min_p": 0.9},
        {"temperature": 30.0, "top_k": 1},
        {"temperature": 1e-30, "top_p": 0.5},
    ],
    ids=str,
)
def test_few_are_kept_of_many_alike(filters: dict[str, float], device: torch.device) -> None:
    """Winner after winner is dropped."""
    logits = torch.randn(7, 5000, device=device)
    logits[1::3] = logits[1::3].round()  # many equal ones
    logits[3, 17], logits[6] = math.inf, -math.inf
    logits[6, 4321] = -1e30
    parameters = _parameters(device, len(logits), **filters)
    expected = sample(logits, *parameters)
    assert_bitwise_equal(sample_triton(logits, *parameters), expected)
    parameters[0][2] = 0.0  # others of the batch are not touched
    assert_bitwise_equal(sample_triton(logits, *parameters), sample(logits, *parameters))


def test_large_vocabulary_and_mixed_rows(device: torch.device) -> None:
    logits = torch.randn(4, 10_000, device=device) * 3
    temperature, top_p, top_k, min_p, *seeds = _parameters(device, 4)
    temperature[1] = 0.0
    top_k[2] = 5
    top_p[3] = 0.5
    parameters = (temperature, top_p, top_k, min_p, *seeds)
    expected = sample(logits, *parameters)
    assert_bitwise_equal(sample_triton(logits, *parameters), expected)
    for row in range(4):
        own = tuple(x[row : row + 1] for x in parameters)
        assert_bitwise_equal(sample_triton(logits[row : row + 1], *own)[0], expected[row])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_unusable_and_infinite_rows(temperature: float, device: torch.device) -> None:
    logits = torch.randn(5, 100, device=device)
    logits[0, 7] = math.nan
    logits[1] = -math.inf
    logits[2, [3, 50, 99]] = math.inf
    logits[3, 1:] = -math.inf
    logits[4] = math.nan
    parameters = _parameters(device, 5, temperature)
    chosen = sample_triton(logits, *parameters)
    assert_bitwise_equal(chosen, sample(logits, *parameters))
    assert chosen[[0, 1, 4]].tolist() == [-1, -1, -1]


@pytest.mark.parametrize("temperature", [1.0, 1e-30])
def test_logits_whose_scores_leave_fp32_are_drawn_from(
    temperature: float, device: torch.device
) -> None:
    """Far below zero, the row had no winner at all; at infinity, only the first tile was seen."""
    logits = torch.randn(4, 1100, device=device)
    logits[0] = -3e38
    logits[1] -= 1e9
    logits[2, :-1], logits[2, -1] = -math.inf, -1e10
    logits[3, [5, -1]] = math.inf
    for _ in range(3):
        parameters = _parameters(device, 4, temperature)
        assert_bitwise_equal(sample_triton(logits, *parameters), sample(logits, *parameters))


def test_rows_with_gaps(device: torch.device) -> None:
    logits, parameters = torch.randn(3, 200, device=device), _parameters(device, 3)
    assert_bitwise_equal(
        sample_triton(logits[:, :100], *parameters),
        sample_triton(logits[:, :100].contiguous(), *parameters),
    )


def test_draws_follow_the_distribution(device: torch.device) -> None:
    probs = torch.tensor([0.5, 0.25, 0.15, 0.1], device=device)
    logits = probs.log().expand(150, -1).contiguous()
    counts = torch.bincount(sample_triton(logits, *_parameters(device, 150)), minlength=4)
    expected = 150 * probs
    assert float(((counts - expected) ** 2 / expected).sum()) < 16.3  # 99.9 % of chi-square(3)


def test_wrong_tensors_are_named(device: torch.device) -> None:
    logits, parameters = torch.randn(2, 10, device=device), _parameters(device, 2)
    with pytest.raises(TensorError, match="logits: expected contiguous torch.float32"):
        sample_triton(logits.bfloat16(), *parameters)
    with pytest.raises(TensorError, match=r"temperature: expected contiguous torch.float32 \[2\]"):
        sample_triton(logits, parameters[0][:1], *parameters[1:])
