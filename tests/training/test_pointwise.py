"""The trainer's fused operations are the reference operations."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.kernels.engram import engram_gate
from deepinfer.kernels.gemm import Weight
from deepinfer.kernels.hyper_connection import Mixer, collapse_streams, expand_streams
from deepinfer.kernels.hyper_connection.reference import hyper_mix_reference
from deepinfer.kernels.moe import swiglu
from deepinfer.kernels.quant import fake_quantize_fp8
from training import pointwise

NUM_ROWS, STREAMS, WIDTH = 37, 4, 64


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def rows(seed: int = 0) -> Tensor:
    return normal(NUM_ROWS, STREAMS, WIDTH, seed=seed, dtype=torch.bfloat16)


def test_fp8_rounding_is_the_same_bit_for_bit() -> None:
    x = normal(NUM_ROWS, WIDTH) * 2.0 ** torch.arange(-18, 19)[:, None]
    x[3] = 0.0
    for values in (x, x.to(torch.bfloat16)):
        assert torch.equal(pointwise.round_fp8(values), fake_quantize_fp8(values))


def test_stream_operations() -> None:
    streams, output = rows(), normal(NUM_ROWS, WIDTH, seed=1, dtype=torch.bfloat16)
    fn = normal(24, STREAMS * WIDTH, seed=2) / 16
    scale, base = normal(3, seed=3), normal(24, seed=4)
    expected = hyper_mix_reference(streams, Mixer(Weight(fn), scale, base, iterations=20, eps=1e-6))
    pre, post, comb = pointwise.stream_mix(streams, fn, scale, base, 20, 1e-6)
    for actual, wanted in zip((pre, post, comb), expected, strict=True):
        torch.testing.assert_close(actual, wanted, atol=1e-5, rtol=1e-5)
    close = {"atol": 1e-2, "rtol": 1e-2}  # one bf16 rounding after another order of summation
    torch.testing.assert_close(
        pointwise.collapse(streams, pre), collapse_streams(streams, expected.pre), **close
    )
    torch.testing.assert_close(
        pointwise.expand(streams, output, post, comb),
        expand_streams(streams, output, expected),
        **close,
    )


def test_swiglu_and_engram_gate() -> None:
    gate_up = 8 * normal(NUM_ROWS, 2 * WIDTH, dtype=torch.bfloat16)
    weights = normal(NUM_ROWS, seed=1)
    torch.testing.assert_close(
        pointwise.swiglu(gate_up, 10.0, weights),
        swiglu(gate_up, 10.0, weights),
        atol=1e-3,
        rtol=1e-2,
    )
    arguments = (
        rows(),
        normal(NUM_ROWS, (STREAMS + 1) * WIDTH, seed=5, dtype=torch.bfloat16),
        normal(STREAMS, WIDTH, seed=6),
        normal(STREAMS, WIDTH, seed=7),
    )
    torch.testing.assert_close(
        pointwise.engram_gate(*arguments), engram_gate(*arguments), atol=1e-2, rtol=1e-2
    )


def test_gradients_are_finite_far_outside() -> None:
    gate_up = (1e4 * normal(NUM_ROWS, 2 * WIDTH)).to(torch.bfloat16).requires_grad_()
    pointwise.swiglu(gate_up, 10.0, torch.ones(NUM_ROWS)).float().sum().backward()
    streams = (1e3 * rows()).requires_grad_()
    fn, scale, base = normal(24, STREAMS * WIDTH), normal(3) * 100, normal(24) * 100
    outputs = pointwise.stream_mix(streams, fn, scale, base, 20, 1e-6)
    sum(part.square().sum() for part in outputs).backward()
    assert gate_up.grad is not None and bool(gate_up.grad.isfinite().all())
    assert streams.grad is not None and bool(streams.grad.isfinite().all())
