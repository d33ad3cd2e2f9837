"""Hyper-connections: Triton against the references, fused against separate."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from deepinfer.errors import TensorError
from deepinfer.kernels.gemm import Weight
from deepinfer.kernels.hyper_connection import HyperMix
from deepinfer.kernels.hyper_connection import triton_kernel as hyper
from deepinfer.kernels.hyper_connection.reference import (
    collapse_streams_reference,
    expand_streams_reference,
    hyper_mix_reference,
)
from deepinfer.kernels.testing import assert_bitwise_equal, assert_close

ROUNDS = {"iterations": 20, "eps": 1e-6}
SHAPES = [(3, 4, 5120), (17, 4, 96), (1, 2, 600), (0, 4, 64)]


def _streams(device: torch.device, shape: tuple[int, int, int]) -> Tensor:
    return torch.randn(shape).bfloat16().to(device)


def _weights(
    device: torch.device, num_streams: int, width: int, size: float = 1.0
) -> tuple[Weight, Tensor, Tensor]:
    rows = num_streams * (2 + num_streams)
    fn = torch.randn(rows, num_streams * width) / (num_streams * width) ** 0.5 * size
    return Weight(fn.to(device)), torch.rand(3, device=device), torch.randn(rows, device=device)


def _mix(device: torch.device, tokens: int, num_streams: int) -> HyperMix:
    comb = torch.rand(tokens, num_streams, num_streams, device=device)
    both = torch.rand(2, tokens, num_streams, device=device)
    return HyperMix(both[0].contiguous(), both[1].contiguous(), comb)


@pytest.mark.parametrize("shape", SHAPES)
def test_mix(shape: tuple[int, int, int], device: torch.device) -> None:
    streams, weights = _streams(device, shape), _weights(device, *shape[1:])
    expected = hyper_mix_reference(streams, *weights, **ROUNDS)
    for name, actual in hyper.hyper_mix_triton(streams, *weights, **ROUNDS)._asdict().items():
        assert_close(actual, getattr(expected, name), atol=2e-6, rtol=1e-5, what=name)


@pytest.mark.parametrize("size", [0.0, 100.0])
def test_mix_of_extremes(size: float, device: torch.device) -> None:
    """All coefficients equal; one-hot rows whose exponentials would overflow."""
    streams, weights = _streams(device, (5, 4, 64)), _weights(device, 4, 64, size)
    expected = hyper_mix_reference(streams, *weights, **ROUNDS)
    for name, actual in hyper.hyper_mix_triton(streams, *weights, **ROUNDS)._asdict().items():
        assert_close(actual, getattr(expected, name), atol=1e-4, rtol=1e-4, what=name)


@pytest.mark.parametrize("shape", SHAPES)
def test_collapse_and_expand(shape: tuple[int, int, int], device: torch.device) -> None:
    streams, mix = _streams(device, shape), _mix(device, *shape[:2])
    output = torch.randn(shape[0], shape[2]).bfloat16().to(device)
    collapsed = hyper.collapse_streams_triton(streams, mix.pre)
    expected = collapse_streams_reference(streams, mix.pre)
    assert_close(collapsed, expected, atol=1e-5, rtol=2**-7, what="collapsed")
    expanded = hyper.expand_streams_triton(streams, output, mix)
    expected = expand_streams_reference(streams, output, mix)
    assert_close(expanded, expected, atol=1e-5, rtol=2**-7, what="expanded")


def test_fused_equals_separate(device: torch.device) -> None:
    streams, mix = _streams(device, (18, 4, 600)), _mix(device, 18, 4)
    output = torch.randn(18, 600).bfloat16().to(device)
    weights = _weights(device, 4, 600)
    expanded, next_mix, collapsed = hyper.advance_streams_triton(
        streams, output, mix, *weights, **ROUNDS
    )
    assert_bitwise_equal(expanded, hyper.expand_streams_triton(streams, output, mix))
    separate = hyper.hyper_mix_triton(expanded, *weights, **ROUNDS)
    for name, value in separate._asdict().items():
        assert_bitwise_equal(getattr(next_mix, name), value, name)
    assert_bitwise_equal(collapsed, hyper.collapse_streams_triton(expanded, mix.pre))


def test_a_token_does_not_depend_on_the_others(device: torch.device) -> None:
    streams, weights = _streams(device, (35, 4, 64)), _weights(device, 4, 64)
    together = hyper.hyper_mix_triton(streams, *weights, **ROUNDS)
    for token in (0, 20, 34):
        alone = hyper.hyper_mix_triton(streams[token : token + 1], *weights, **ROUNDS)
        for name, value in alone._asdict().items():
            assert_bitwise_equal(value[0], getattr(together, name)[token], name)


def test_equal_streams_without_copies(device: torch.device) -> None:
    """The first block's streams are one tensor seen four times."""
    embedded = torch.randn(3, 64).bfloat16().to(device)
    streams, weights = embedded[:, None].expand(-1, 4, -1), _weights(device, 4, 64)
    for actual, expected in zip(
        hyper.hyper_mix_triton(streams, *weights, **ROUNDS),
        hyper.hyper_mix_triton(streams.contiguous(), *weights, **ROUNDS),
        strict=True,
    ):
        assert_bitwise_equal(actual, expected)


def test_wrong_tensors_are_named(device: torch.device) -> None:
    streams, mix = _streams(device, (2, 4, 64)), _mix(device, 2, 4)
    with pytest.raises(TensorError, match=r"output: expected contiguous torch.bfloat16 \[2, 64\]"):
        hyper.expand_streams_triton(streams, streams[:, 0], mix)
    with pytest.raises(TensorError, match="streams: expected bf16"):
        hyper.collapse_streams_triton(streams.float(), mix.pre)
