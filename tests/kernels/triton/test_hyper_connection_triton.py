"""Hyper-connections: Triton against the references, fused against separate."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from deepinfer.errors import TensorError
from deepinfer.kernels.gemm import Weight
from deepinfer.kernels.gemm.activations import quantize_activations
from deepinfer.kernels.hyper_connection import Entrance, HyperMix, Mixer
from deepinfer.kernels.hyper_connection import triton_kernel as hyper
from deepinfer.kernels.hyper_connection.reference import (
    collapse_streams_reference,
    expand_streams_reference,
    hyper_mix_reference,
)
from deepinfer.kernels.moe import PairOutputs
from deepinfer.kernels.norm.reference import rms_norm_reference
from deepinfer.kernels.testing import assert_bitwise_equal, assert_close

# More tokens than the largest tile of compiled kernels; the model's width.
LARGE = [pytest.param(shape, marks=pytest.mark.gpu) for shape in [(70, 4, 256), (3, 4, 5120)]]
SHAPES = [(3, 4, 1344), (33, 4, 96), (17, 4, 160), (1, 2, 608), (0, 4, 64), *LARGE]


def _streams(device: torch.device, shape: tuple[int, int, int]) -> Tensor:
    return torch.randn(shape).bfloat16().to(device)


def _mixer(device: torch.device, num_streams: int, width: int, size: float = 1.0) -> Mixer:
    rows = num_streams * (2 + num_streams)
    fn = torch.randn(rows, num_streams * width) / (num_streams * width) ** 0.5 * size
    scale, base = torch.rand(3, device=device), torch.randn(rows, device=device)
    return Mixer(Weight(fn.to(device)), scale, base, iterations=20, eps=1e-6)


def _entrance(device: torch.device, width: int) -> Entrance:
    """Before a product with FP8 weights."""
    values = torch.randn(64, width).to(torch.float8_e4m3fn)
    scales = torch.full((2, width // 32), 127, dtype=torch.uint8).view(torch.float8_e8m0fnu)
    weight = torch.randn(width).bfloat16().to(device)
    return Entrance(weight, 1e-6, Weight(values.to(device), scales.to(device)))


def _coefficients(streams: Tensor, mixer: Mixer) -> HyperMix:
    pre = torch.ones(streams.shape[:2], device=streams.device)
    entrance = _entrance(streams.device, streams.shape[2])
    return hyper.enter_streams_triton(streams, pre, mixer, entrance).mix


def _assert_same(actual: HyperMix, expected: HyperMix) -> None:
    for name, value in expected._asdict().items():
        assert_bitwise_equal(getattr(actual, name), value, name)


def _mix(device: torch.device, tokens: int, num_streams: int) -> HyperMix:
    comb = torch.rand(tokens, num_streams, num_streams, device=device)
    both = torch.rand(2, tokens, num_streams, device=device)
    return HyperMix(both[0].contiguous(), both[1].contiguous(), comb)


@pytest.mark.parametrize("shape", SHAPES)
def test_mix(shape: tuple[int, int, int], device: torch.device) -> None:
    streams, mixer = _streams(device, shape), _mixer(device, *shape[1:])
    expected = hyper_mix_reference(streams, mixer)
    for name, actual in _coefficients(streams, mixer)._asdict().items():
        assert_close(actual, getattr(expected, name), atol=2e-6, rtol=1e-5, what=name)


@pytest.mark.parametrize("size", [0.0, 100.0])
def test_mix_of_extremes(size: float, device: torch.device) -> None:
    """All coefficients equal; one-hot rows whose exponentials would overflow."""
    streams, mixer = _streams(device, (5, 4, 64)), _mixer(device, 4, 64, size)
    expected = hyper_mix_reference(streams, mixer)
    for name, actual in _coefficients(streams, mixer)._asdict().items():
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


@pytest.mark.parametrize("shape", [(18, 4, 352), (3, 2, 1280), (33, 4, 96), *LARGE])
def test_advance_equals_its_parts(shape: tuple[int, int, int], device: torch.device) -> None:
    streams, mix = _streams(device, shape), _mix(device, *shape[:2])
    output = torch.randn(shape[0], shape[2]).bfloat16().to(device)
    mixer, entrance = _mixer(device, *shape[1:]), _entrance(device, shape[2])
    expanded, entry = hyper.advance_streams_triton(streams, output, mix, mixer, entrance)
    assert_bitwise_equal(expanded, hyper.expand_streams_triton(streams, output, mix))
    entered = hyper.enter_streams_triton(expanded, mix.pre, mixer, entrance)
    _assert_same(entry.mix, entered.mix)
    assert_bitwise_equal(entry.rows.values, entered.rows.values)
    collapsed = hyper.collapse_streams_triton(expanded, mix.pre)
    expected = rms_norm_reference(collapsed, entrance.weight, entrance.eps)
    assert_close(entry.rows.values, expected, atol=0, rtol=2**-7)


@pytest.mark.parametrize("width", [96, 256])
def test_pairs_are_added_in_passing(width: int, device: torch.device) -> None:
    """As if the experts' rows had been added up before: in fp32, rounded once."""
    tokens, choices = 19, 3
    rows = torch.randn(40, width).bfloat16().to(device)
    row = torch.randint(-1, 40, (tokens * choices,), dtype=torch.int32, device=device)
    shared = torch.randn(tokens, width).bfloat16().to(device)
    picked = torch.where(row[:, None] >= 0, rows[row.clamp(min=0)].float(), 0.0)
    total = torch.zeros(tokens, width, device=device)
    for choice in range(choices):
        total += picked.view(tokens, choices, width)[:, choice]
    output = (total + shared.float()).bfloat16()
    streams, mix = _streams(device, (tokens, 4, width)), _mix(device, tokens, 4)
    pairs = PairOutputs(rows, row, shared)
    expected = hyper.expand_streams_triton(streams, output, mix)
    assert_bitwise_equal(hyper.expand_streams_triton(streams, pairs, mix), expected)
    way_in = _mixer(device, 4, width), _entrance(device, width)
    expanded, _ = hyper.advance_streams_triton(streams, pairs, mix, *way_in)
    assert_bitwise_equal(expanded, expected)


def test_what_is_left_for_the_product_is_what_it_quantises(device: torch.device) -> None:
    streams, entrance = _streams(device, (7, 4, 160)), _entrance(device, 160)
    pre = torch.rand(7, 4, device=device)
    rows = hyper.enter_streams_triton(streams, pre, _mixer(device, 4, 160), entrance).rows
    assert not isinstance(rows.operand, Tensor)
    expected = quantize_activations(rows.values, rows.operand.path, rows.operand.order)
    assert_bitwise_equal(rows.operand.values, expected.values)


def test_a_token_does_not_depend_on_the_others(device: torch.device) -> None:
    tokens = 35 if device.type == "cpu" else 135  # three tiles
    streams, mixer = _streams(device, (tokens, 4, 128)), _mixer(device, 4, 128)
    together = _coefficients(streams, mixer)
    for token in (0, 20, tokens - 1):
        alone = _coefficients(streams[token : token + 1], mixer)
        _assert_same(alone, HyperMix(*(part[token : token + 1] for part in together)))


def test_equal_streams_without_copies(device: torch.device) -> None:
    """The first block's streams are one tensor seen four times."""
    embedded = torch.randn(3, 128).bfloat16().to(device)
    streams, mixer = embedded[:, None].expand(-1, 4, -1), _mixer(device, 4, 128)
    _assert_same(_coefficients(streams, mixer), _coefficients(streams.contiguous(), mixer))


def test_wrong_tensors_are_named(device: torch.device) -> None:
    streams, mix = _streams(device, (2, 4, 64)), _mix(device, 2, 4)
    with pytest.raises(TensorError, match=r"output: expected contiguous torch.bfloat16 \[2, 64\]"):
        hyper.expand_streams_triton(streams, streams[:, 0], mix)
    with pytest.raises(TensorError, match="streams: expected bf16"):
        hyper.collapse_streams_triton(streams.float(), mix.pre)
