"""Linear layers in Triton against their references, on every matrix path the machine can run."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from deepinfer.errors import TensorError
from deepinfer.kernels.gemm import Weight
from deepinfer.kernels.gemm.activations import quantize_activations
from deepinfer.kernels.gemm.k_order import KOrder, fragment_order
from deepinfer.kernels.gemm.matrix_path import MatrixPath
from deepinfer.kernels.gemm.reference import (
    fp32_linear_reference,
    grouped_linear_reference,
    linear_reference,
    quantized_linear_reference,
)
from deepinfer.kernels.gemm.triton_kernel import (
    fp32_linear_triton,
    grouped_linear_triton,
    linear_triton,
    quantized_linear_triton,
)
from deepinfer.kernels.quant import fake_quantize_fp8, quantize_fp8
from deepinfer.kernels.testing import assert_bitwise_equal, assert_close, relative_error


def _paths(device: torch.device) -> list[MatrixPath]:
    """The interpreter runs them all; a GPU its own and the portable one."""
    if device.type == "cpu":
        return list(MatrixPath)
    return sorted({MatrixPath.DECODED, MatrixPath.of(device)})


def _activations(rows: int, k: int, device: torch.device) -> Tensor:
    """Blocks of very different size, one of zeros."""
    x = torch.randn(rows, k) * torch.exp2(torch.randint(-3, 4, (rows, k // 32)).float())[
        :, :, None
    ].expand(-1, -1, 32).reshape(rows, k)
    x[:, :32] *= torch.arange(rows)[:, None] % 3 > 0
    return x.to(torch.bfloat16).to(device)


def _fp8(*shape: int, device: torch.device, spread: int = 3) -> Weight:
    *members, n, k = shape
    values = torch.randn(*members, n, k).clamp(-4, 4).mul(60).to(torch.float8_e4m3fn)
    scales = torch.randint(118, 118 + spread, (*members, n // 32, k // 32), dtype=torch.uint8)
    return Weight(values.to(device), scales.view(torch.float8_e8m0fnu).to(device))


def _fp4(*shape: int, device: torch.device, spread: int = 6) -> Weight:
    *members, n, k = shape
    values = torch.randint(-128, 128, (*members, n, k // 2), dtype=torch.int8)
    scales = torch.randint(118, 118 + spread, (*members, n, k // 32), dtype=torch.uint8)
    return Weight(values.to(device), scales.view(torch.float8_e8m0fnu).to(device))


_MAKERS = {"fp8": _fp8, "fp4": _fp4}
_ODD_SHAPES = [(1, 32, 32), (5, 96, 96), (18, 160, 384), (0, 64, 128)]


@pytest.mark.parametrize("rows, k", [(1, 32), (3, 96), (2, 1184)])
def test_quantised_activations(rows: int, k: int, device: torch.device) -> None:
    x = _activations(rows, k, device)
    decoded = quantize_activations(x, MatrixPath.DECODED, KOrder.PLAIN)
    assert_bitwise_equal(decoded.values[:, :k], fake_quantize_fp8(x))
    values, exponents = quantize_fp8(x)
    scaled = quantize_activations(x, MatrixPath.SCALED, KOrder.PLAIN)
    assert scaled.scales is not None
    assert_bitwise_equal(scaled.values[:, :k].float(), values.float())
    assert_bitwise_equal(scaled.scales[:, : k // 32], exponents)


@pytest.mark.parametrize("rows, k", [(1, 32), (3, 96), (2, 1184)])
def test_folded_activations(rows: int, k: int, device: torch.device) -> None:
    """One scale for 128: what 32-wide scales give, but for numbers near nothing; split reorders."""
    x = _activations(rows, k, device)
    folded = quantize_activations(x, MatrixPath.FP8, KOrder.PLAIN)
    assert folded.scales is not None
    codes = folded.values.float()
    groups = codes.view(rows, -1, 128) * folded.scales.t()[:rows, :, None]
    exact = torch.zeros_like(codes)
    exact[:, :k] = fake_quantize_fp8(x).float()
    difference = (groups - exact.view_as(groups)).abs()
    largest = exact.view_as(groups).abs().amax(-1, keepdim=True)
    assert bool((difference <= largest * 2.0**-17).all())
    split = quantize_activations(x, MatrixPath.FP8, KOrder.SPLIT).values.float()
    assert_bitwise_equal(split, codes.view(rows, -1, 64, 2).transpose(-1, -2).reshape(rows, -1))
    fragment = quantize_activations(x, MatrixPath.FP8, KOrder.FRAGMENT).values.float()
    assert_bitwise_equal(fragment, fragment_order(codes))


@pytest.mark.parametrize("kind", list(_MAKERS))
@pytest.mark.parametrize("rows, n, k", _ODD_SHAPES)
def test_quantized_linear(rows: int, n: int, k: int, kind: str, device: torch.device) -> None:
    x, weight = _activations(rows, k, device), _MAKERS[kind](n, k, device=device)
    expected = quantized_linear_reference(x, weight)
    for path in _paths(device):
        actual = quantized_linear_triton(x, weight, path=path)
        assert actual.shape == expected.shape, path.name
        if rows:
            assert float(relative_error(actual, expected).max()) < 4e-3, path.name


@pytest.mark.parametrize("kind", list(_MAKERS))
def test_every_code_and_scale(kind: str, device: torch.device) -> None:
    """One-hot rows read columns of the weight back exactly, every code under scales that differ."""
    n, columns = 256, [0, 1, 2, 31, 32, 63, 66, 95, 96, 127]
    byte = torch.arange(128 if kind == "fp8" else 64)
    codes = ((torch.arange(n)[:, None] + 37 * byte) % 256).to(torch.uint8)
    if kind == "fp8":
        codes[(codes & 127) == 127] = 0  # NaN
        exponents = torch.randint(118, 124, (n // 32, 4), dtype=torch.uint8)
        values = codes.view(torch.float8_e4m3fn)
    else:
        exponents = torch.randint(110, 122, (n, 4), dtype=torch.uint8)
        values = codes.view(torch.int8)
    weight = Weight(values.to(device), exponents.view(torch.float8_e8m0fnu).to(device))
    x = torch.eye(128, dtype=torch.bfloat16, device=device)[columns]
    exact = weight.dense[:, columns]
    for path in _paths(device):
        numbers = quantized_linear_triton(x, weight, path=path).t()
        if path is MatrixPath.FP8 and kind == "fp8":
            top = exponents.amax(1).repeat_interleave(32).to(device)
            smallest = torch.exp2(top.float() - 127 - 6)[:, None]
            assert bool(((numbers - exact).abs() <= smallest).all())
            numbers = torch.where(exact.abs() < smallest, exact, numbers)
        assert_bitwise_equal(numbers, exact, path.name)


def test_huge_spread_of_scales_keeps_what_counts(device: torch.device) -> None:
    """Scales 2**40 apart in one row: the small blocks may vanish, the large must not suffer."""
    weight = _fp4(64, 256, device=device)
    assert weight.scales is not None
    exponents = weight.scales.view(torch.uint8)
    exponents[:, ::2] = 80
    exponents[:, 1::2] = 120
    x = torch.randn(4, 256, device=device).to(torch.bfloat16)
    expected = quantized_linear_reference(x, weight)
    for path in _paths(device):
        actual = quantized_linear_triton(x, weight, path=path)
        assert float(relative_error(actual, expected).max()) < 4e-3, path.name


@pytest.mark.parametrize("rows, n, k", [(1, 24, 40), (19, 130, 200), (400, 130, 72), (0, 8, 64)])
def test_plain_linear(rows: int, n: int, k: int, device: torch.device) -> None:
    x = torch.randn(rows, k, device=device).to(torch.bfloat16)
    weight = Weight(torch.randn(n, k, device=device).to(torch.bfloat16))
    expected = linear_reference(x, weight)
    assert_close(linear_triton(x, weight), expected, atol=1e-2, rtol=8e-3)


@pytest.mark.parametrize("kind", list(_MAKERS))
def test_linear_on_packed_weights(kind: str, device: torch.device) -> None:
    """Activations that are not quantised meet the weight's exact numbers."""
    x = torch.randn(7, 160, device=device).to(torch.bfloat16)
    weight = _MAKERS[kind](96, 160, device=device)
    error = relative_error(linear_triton(x, weight), linear_reference(x, weight))
    assert float(error.max()) < 4e-3


@pytest.mark.parametrize("rows, groups, n, k", [(3, 4, 32, 64), (18, 2, 96, 160), (0, 2, 32, 32)])
@pytest.mark.parametrize("packed", [True, False])
def test_grouped_linear(
    rows: int, groups: int, n: int, k: int, packed: bool, device: torch.device
) -> None:
    x = torch.randn(rows, groups, k, device=device).to(torch.bfloat16)
    weight = _fp8(groups, n, k, device=device)
    weight = weight if packed else Weight(weight.dense)
    actual, expected = grouped_linear_triton(x, weight), grouped_linear_reference(x, weight)
    assert actual.shape == expected.shape
    if rows:
        assert float(relative_error(actual, expected).max()) < 4e-3


@pytest.mark.parametrize("rows, groups, n, k", [(3, 4, 32, 64), (18, 2, 96, 256), (0, 2, 32, 128)])
def test_grouped_linear_of_fp8_activations(
    rows: int, groups: int, n: int, k: int, device: torch.device
) -> None:
    """Rounded first, each group by its own scales: the bits of a product for each group."""
    x = _activations(rows * groups, k, device).view(rows, groups, k)
    x *= 2.0 ** torch.arange(groups, device=device)[:, None]
    weight = _fp8(groups, n, k, device=device)
    expected = grouped_linear_reference(x, weight, fp8=True)
    for path in _paths(device):
        actual = grouped_linear_triton(x, weight, fp8=True, path=path)
        assert actual.shape == expected.shape
        if not rows:
            continue
        assert float(relative_error(actual, expected).max()) < 4e-3
        unrounded = grouped_linear_reference(x, weight)
        assert float(relative_error(unrounded, expected).max()) > 5e-3
        path = MatrixPath.DECODED if k % 128 else path  # blocks of 128 would be of two groups
        for group in range(groups):
            own = quantized_linear_triton(x[:, group].contiguous(), weight[group], path=path)
            assert_bitwise_equal(actual[:, group], own)


@pytest.mark.parametrize("x_dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("w_dtype", [torch.bfloat16, torch.float32])
def test_fp32_linear(x_dtype: torch.dtype, w_dtype: torch.dtype, device: torch.device) -> None:
    x = torch.randn(9, 200, device=device).to(x_dtype)
    weight = Weight(torch.randn(70, 200, device=device).to(w_dtype))
    actual, expected = fp32_linear_triton(x, weight), fp32_linear_reference(x, weight)
    assert_close(actual, expected, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("rows", [0, 1, 19])
def test_what_lies_around_a_given_place_stays(rows: int, device: torch.device) -> None:
    x = torch.randn(rows, 72, device=device).to(torch.bfloat16)
    weight = Weight(torch.randn(40, 72, device=device).to(torch.bfloat16))
    place = torch.full((rows + 4, 40), 7.0, device=device)
    out = fp32_linear_triton(x, weight, place[2 : rows + 2])
    assert_bitwise_equal(out, fp32_linear_triton(x, weight))
    assert bool((place[:2] == 7).all()) and bool((place[rows + 2 :] == 7).all())


@pytest.mark.parametrize("kind", list(_MAKERS))
def test_a_row_of_nan_harms_no_other(kind: str, device: torch.device) -> None:
    x = _activations(6, 160, device)
    x[2] = float("nan")
    weight = _MAKERS[kind](64, 160, device=device)
    for path in _paths(device):
        actual = quantized_linear_triton(x, weight, path=path)
        if device.type == "cuda" or path is MatrixPath.DECODED:  # interpreted FP8 has no NaN
            assert actual[2].isnan().all()
        rest = [0, 1, 3, 4, 5]
        alone = quantized_linear_triton(x[rest], weight, path=path)
        assert_bitwise_equal(actual[rest], alone, path.name)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [*_MAKERS, "plain"])
@pytest.mark.parametrize("n, k", [(1792, 5120), (5120, 1280)])
def test_a_row_has_the_same_bits_in_any_batch(
    n: int, k: int, kind: str, device: torch.device
) -> None:
    """Batches of every tile, and one row more: the chain of products of an output does not depend
    on the tile."""
    x = _activations(4097, k, device)
    weight = _fp8(n, k, device=device) if kind == "plain" else _MAKERS[kind](n, k, device=device)
    weight = Weight(weight.dense) if kind == "plain" else weight
    op = linear_triton if kind == "plain" else quantized_linear_triton
    whole = op(x, weight)
    for rows in (1, 2, 7, 16, 17, 64, 256, 1025):
        assert_bitwise_equal(op(x[:rows].contiguous(), weight), whole[:rows], f"{rows} rows")
    assert_bitwise_equal(op(x[-1:], weight), whole[-1:], "the last row")
    assert_bitwise_equal(op(x, weight), whole, "second run")


def test_what_does_not_fit_is_named(device: torch.device) -> None:
    weight = _fp8(64, 96, device=device)
    with pytest.raises(TensorError, match=r"x: expected .* \[any, 96\]"):
        quantized_linear_triton(torch.zeros(2, 64, dtype=torch.bfloat16, device=device), weight)
    with pytest.raises(TensorError, match="bf16|bfloat16"):
        quantized_linear_triton(torch.zeros(2, 96, device=device), weight)
    with pytest.raises(TensorError, match="packed"):
        quantized_linear_triton(
            torch.zeros(2, 96, dtype=torch.bfloat16, device=device), Weight(weight.dense)
        )
    with pytest.raises(TensorError, match="contiguous"):
        linear_triton(
            torch.zeros(2, 64, dtype=torch.bfloat16, device=device), Weight(weight.dense[:, :64])
        )
