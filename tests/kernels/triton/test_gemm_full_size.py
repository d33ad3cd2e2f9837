"""Linear layers on a GPU against the references, at full size."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from deepinfer.bench.kernels.gemm import random_rows, random_weight
from deepinfer.kernels.gemm import (
    fp32_linear,
    grouped_linear,
    linear,
    native_weight,
    quantized_linear,
)
from deepinfer.kernels.gemm.reference import (
    fp32_linear_reference,
    grouped_linear_reference,
    linear_reference,
    quantized_linear_reference,
)
from deepinfer.kernels.testing import calc_diff

# N, K of the projections: q_a with kv, q_b, o_b.
_DENSE = {"wq_a_kv": (1792, 5120), "wq_b": (32768, 1280), "wo_b": (5120, 8192)}


pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", sorted(_DENSE))
@pytest.mark.parametrize("kind", ("fp8", "fp4"))
def test_quantized(name: str, kind: str) -> None:
    n, k = _DENSE[name]
    weight = random_weight(kind, n, k)
    worst = 0.0
    for rows in (1, 7, 64, 129, 1024):
        x = random_rows(rows, k)
        expected = quantized_linear_reference(x, weight)
        for form in (weight, native_weight(weight)):
            worst = max(worst, calc_diff(quantized_linear(x, form), expected))
    assert worst < 1e-5, f"calc_diff {worst:.2e}"


def test_odd() -> None:
    worst = 0.0
    for rows, n, k in [(3, 32, 32), (17, 96, 160), (65, 608, 224), (400, 160, 1184)]:
        x = random_rows(rows, k)
        for kind in ("fp8", "fp4"):
            weight = random_weight(kind, n, k)
            diff = calc_diff(quantized_linear(x, weight), quantized_linear_reference(x, weight))
            worst = max(worst, diff)
        plain = random_weight("bf16", n, k)
        worst = max(worst, calc_diff(linear(x, plain), linear_reference(x, plain)))
    assert worst < 1e-5, f"calc_diff {worst:.2e}"


def test_grouped() -> None:
    worst = 0.0
    for weight in (random_weight("fp8", 8, 1024, 4096), random_weight("bf16", 8, 1024, 4096)):
        for rows in (1, 65, 512):
            x = random_rows(rows, 8, 4096)
            diff = calc_diff(grouped_linear(x, weight), grouped_linear_reference(x, weight))
            worst = max(worst, diff)
    assert worst < 1e-5, f"calc_diff {worst:.2e}"


def test_fp32() -> None:
    weight, x = random_weight("bf16", 384, 5120), random_rows(70, 5120)
    exact = x.double() @ weight.values.double().t()
    ours = float((fp32_linear(x, weight) - exact).abs().max() / exact.abs().max())
    torch_error = fp32_linear_reference(x, weight) - exact
    theirs = float(torch_error.abs().max() / exact.abs().max())
    assert ours < 3e-5, f"relative error {ours:.2e}, torch fp32 {theirs:.2e}"


@pytest.mark.parametrize("kind", ("fp8", "fp4", "bf16"))
def test_bits(kind: str) -> None:
    plain, x = random_weight(kind, 5120, 5120), random_rows(2048, 5120)
    if kind == "bf16":
        _assert_same_bits(partial(linear, weight=plain), x)
    else:
        for weight in (plain, native_weight(plain)):
            _assert_same_bits(partial(quantized_linear, weight=weight), x)


def _assert_same_bits(op: Callable[[Tensor], Tensor], x: Tensor) -> None:
    whole = op(x)
    for rows in (1, 2, 7, 16, 17, 64, 256, 1025):
        same = torch.equal(op(x[:rows].contiguous()), whole[:rows])
        assert same, f"{rows} rows differ from the same rows of 2,048"
    assert torch.equal(op(x), whole), "a second run differs"
