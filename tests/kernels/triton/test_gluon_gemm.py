"""Linear layers in Gluon on NVIDIA SM90: against references, the same bits from every kernel."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from gemm_operands import (
    CUDA,
    FP8_TILES,
    random_fp4,
    random_fp8,
    random_rows,
)
from torch import Tensor

from deepinfer.errors import TensorError
from deepinfer.kernels.gemm import (
    HopperWeight,
    Weight,
    fp32_linear,
    grouped_linear,
    grouped_linear_quantized,
    native_gate_up,
    native_grouped_weight,
    native_weight,
    quantized_linear,
)
from deepinfer.kernels.gemm.activations import Activations, quantize_activations
from deepinfer.kernels.gemm.gluon_grouped_launch import grouped_linear_gluon
from deepinfer.kernels.gemm.gluon_kernel import fits_gate, gated_rows_gluon, linear_rows_gluon
from deepinfer.kernels.gemm.gluon_parts_launch import fits_parts, fp32_linear_parts_gluon
from deepinfer.kernels.gemm.gluon_plain_launch import fits_plain
from deepinfer.kernels.gemm.hopper_tile import (
    SLIM,
    WIDE_FP8,
    NarrowTile,
    hopper_tile,
)
from deepinfer.kernels.gemm.hopper_weights import recast_weight
from deepinfer.kernels.gemm.k_order import KOrder
from deepinfer.kernels.gemm.matrix_path import MatrixPath
from deepinfer.kernels.gemm.parts_tiles import TILES
from deepinfer.kernels.gemm.reference import grouped_linear_reference, quantized_linear_reference
from deepinfer.kernels.gemm.triton_kernel import (
    fp32_linear_parts_triton,
    fp32_linear_triton,
    grouped_linear_triton,
)
from deepinfer.kernels.moe import (
    experts,
    gated_linear,
    native_experts,
)
from deepinfer.kernels.moe.pair_order import order_tokens
from deepinfer.kernels.moe.triton_swiglu import swiglu_for_triton, swiglu_of_rows
from deepinfer.kernels.testing import assert_bitwise_equal, relative_error

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("needs_sm90")]


_LIMIT = 10.0


@pytest.mark.parametrize("n, k", [(1792, 5120), (32768, 1280), (5120, 8192), (192, 512)])
def test_linear_layers_of_the_model(n: int, k: int) -> None:
    weight, x = random_fp8(n, k), random_rows(1100, k)
    native = native_weight(weight)
    assert isinstance(native, HopperWeight)
    whole = quantized_linear(x, native)
    expected = quantized_linear_reference(x, weight)
    assert float(relative_error(whole, expected).max()) < 4e-3
    for rows in (1, 2, 7, 16, 17, 63, 64, 65, 129, 256, 300):
        part = quantized_linear(x[:rows].contiguous(), native)
        assert_bitwise_equal(part, whole[:rows], f"{rows} rows")
    assert_bitwise_equal(quantized_linear(x, native), whole, "second run")
    assert quantized_linear(x[:0], native).shape == (0, n)


@pytest.mark.parametrize("n, k", [(1792, 5120), (192, 512)])
def test_4097_rows(n: int, k: int) -> None:
    """One more than whole tiles of every size."""
    weight, x = native_weight(random_fp8(n, k)), random_rows(4097, k)
    whole = quantized_linear(x, weight)
    for part in (slice(0, 64), slice(4000, 4097), slice(4096, 4097)):
        assert_bitwise_equal(quantized_linear(x[part].contiguous(), weight), whole[part], f"{part}")


@pytest.mark.parametrize("rows", [1, 64, 100, 192, 193, 700])
def test_every_tile_has_the_same_bits(rows: int) -> None:
    """Whatever the sizes would choose; the last columns are less than a tile."""
    native = native_weight(random_fp8(1344, 768))
    assert isinstance(native, HopperWeight)
    acts = quantize_activations(random_rows(rows, 768), MatrixPath.FP8, native.order)
    tiles = (*FP8_TILES, SLIM)
    first, *others = [linear_rows_gluon(acts, native, None, tile) for tile in tiles]
    for tile, other in zip(tiles[1:], others, strict=True):
        assert_bitwise_equal(other, first, str(tile))


@pytest.mark.parametrize("groups, n, k", [(8, 1024, 4096), (3, 256, 64), (0, 5000, 512)])
def test_bf16_layers_have_the_portable_forms_bits(groups: int, n: int, k: int) -> None:
    """``groups`` 0: one layer with fp32 results, whose columns end inside of a tile."""
    lead = (groups,) if groups else ()
    weight = Weight((torch.randn(*lead, n, k, device=CUDA) / k**0.5).to(torch.bfloat16))
    for rows in (256, 300, 1100):
        x = torch.randn(rows, *lead, k, device=CUDA).to(torch.bfloat16)
        assert fits_plain(x, weight)
        if groups:
            assert_bitwise_equal(grouped_linear(x, weight), grouped_linear_triton(x, weight))
        else:
            assert_bitwise_equal(fp32_linear(x, weight), fp32_linear_triton(x, weight))


@pytest.mark.parametrize("n, k", [(384, 5120), (256, 512), (64, 256)])
def test_parts_of_bf16_layers_have_the_portable_forms_bits(n: int, k: int) -> None:
    weight = Weight((torch.randn(n, k, device=CUDA) / k**0.5).to(torch.bfloat16))
    for rows in (1, 60, 300, 1500, 9000):
        x = torch.randn(rows, k, device=CUDA).to(torch.bfloat16)
        assert fits_parts(x, weight, 4)
        parts = fp32_linear_parts_triton(x, weight, 4)
        first, second, third, fourth = parts.split(1, dim=1)
        whole = first + second + third + fourth
        for form in product(TILES, (1, 4)):
            actual = fp32_linear_parts_gluon(x, weight, 4, form)
            assert_bitwise_equal(actual, parts if form[1] == 1 else whole, str(form))


@pytest.mark.parametrize("rows", [256, 300, 1100])
def test_groups_leave_quantised_with_the_same_bits(rows: int) -> None:
    weight = Weight((torch.randn(8, 256, 512, device=CUDA) / 16).to(torch.bfloat16))
    linear, x = (
        native_weight(random_fp8(512, 2048)),
        torch.randn(rows, 8, 512, device=CUDA).bfloat16(),
    )
    x[3, 2, 1], x[4, 0, 0] = float("nan"), float("inf")
    assert isinstance(linear, HopperWeight)
    actual = grouped_linear_quantized(x, weight, linear)
    expected = quantize_activations(
        grouped_linear(x, weight).flatten(1), MatrixPath.FP8, linear.order
    )
    assert isinstance(actual, Activations)
    assert_same_codes(actual, expected, torch.arange(rows))


@pytest.mark.parametrize("groups, n, k", [(8, 1024, 4096), (3, 128, 512)])
def test_fp8_groups(groups: int, n: int, k: int) -> None:
    """Against the reference, one row against many, other rows beside one of NaN."""
    weight = random_fp8(groups * n, k).split_rows(groups)
    native = native_grouped_weight(weight, fp8=True)
    assert isinstance(native, HopperWeight)
    x = random_rows(700, groups * k).view(700, groups, k)
    whole = grouped_linear(x, native, fp8=True)
    expected = grouped_linear_reference(x, weight, fp8=True)
    assert_bitwise_equal(
        grouped_linear(_quantized(x.flatten(1)), native), whole, "quantised before"
    )
    whole, expected = whole.flatten(1), expected.flatten(1)
    assert float(relative_error(whole, expected).max()) < 4e-3
    for rows in (0, 1, 2, 16, 17, 63, 64, 65, 129, 192, 256, 300):
        part = grouped_linear(x[:rows], native, fp8=True).flatten(1)
        assert_bitwise_equal(part, whole[:rows], f"{rows} rows")
    x[2, 1, 7] = float("nan")
    harmed = grouped_linear(x, native, fp8=True).flatten(1)
    assert harmed[2, n : 2 * n].isnan().all()
    whole[2, n : 2 * n] = harmed[2, n : 2 * n]
    assert_bitwise_equal(harmed, whole)


# Of 2,200 rows the last square tiles are shared by two programs.
@pytest.mark.parametrize("rows", [1, 16, 100, 192, 193, 300, 2200])
def test_every_tile_of_groups_has_the_bits_of_each_group(rows: int) -> None:
    """As bf16, and quantised in passing; what is left is less than a tile of rows."""
    weight, x = (
        random_fp8(4 * 256, 768).split_rows(4),
        random_rows(rows, 4 * 768).view(rows, 4, 768),
    )
    x[rows // 2, 2, 1], x[rows - 1, 0, 0] = float("nan"), float("inf")
    native, linear = native_grouped_weight(weight, fp8=True), native_weight(random_fp8(256, 1024))
    assert isinstance(native, HopperWeight) and isinstance(linear, HopperWeight)
    expected = torch.cat(
        [quantized_linear(x[:, g].contiguous(), native_weight(weight[g])) for g in range(4)], 1
    )
    acts, codes = _quantized(x.flatten(1)), _quantized(expected)
    for tile in FP8_TILES:
        plain = grouped_linear_gluon(acts, native, tile=tile)
        assert isinstance(plain, Tensor)
        assert_bitwise_equal(plain, expected, str(tile))
        passed = grouped_linear_gluon(acts, native, linear, tile)
        if isinstance(tile, NarrowTile):
            assert isinstance(passed, Tensor)
            passed = _quantized(passed)
        assert isinstance(passed, Activations)
        assert_same_codes(passed, codes, torch.arange(rows))


def _quantized(x: Tensor) -> Activations:
    return quantize_activations(x, MatrixPath.FP8, KOrder.PLAIN)


@pytest.mark.parametrize("few", [16, 64, None])
def test_products_leave_activated_with_the_same_bits(few: int | None) -> None:
    """Experts of many, few and no rows, as after SwiGLU by itself; the order of K too.  Twice:
    programs count who is done where those before them did."""
    prepared = native_gate_up(random_fp4(5, 512, 512))
    assert isinstance(prepared, HopperWeight) and prepared.is_gated
    weight = recast_weight(prepared) if few is None else prepared
    tile = WIDE_FP8 if few is None else hopper_tile(weight, few)
    ids = torch.tensor([0] * 300 + [1] * 40 + [3] * 129 + [4] * 256, device=CUDA)[:, None]
    weights = torch.rand(len(ids), 1, device=CUDA)
    x = random_rows(len(ids), 512)
    x[5], x[320, 7] = float("nan"), float("inf")
    rows, acts = order_tokens(x, ids, 5, tile.rows, MatrixPath.FP8, weight.order)
    assert fits_gate(weight, tile, len(rows.pair))
    hidden = linear_rows_gluon(acts, weight, rows, tile)
    for order in (KOrder.PLAIN, KOrder.FRAGMENT):
        actual = gated_rows_gluon(acts, weight, tile, order, _LIMIT, rows, weights)
        expected = swiglu_of_rows(
            hidden, _LIMIT, weights, rows, MatrixPath.FP8, order, alternate=True
        )
        assert_same_codes(actual, expected, (rows.pair >= 0).nonzero()[:, 0])


@pytest.mark.parametrize("tokens", [1, 60, 200, 300, 2000])
def test_gated_linear(tokens: int) -> None:
    """The shared expert, in every tile, against halves that do not alternate."""
    packed, down = random_fp8(4608, 5120), native_weight(random_fp8(5120, 2304))
    x = random_rows(tokens, 5120)
    actual = gated_linear(x, native_gate_up(packed), _LIMIT, down)
    hidden = quantized_linear(x, native_weight(packed))
    expected = swiglu_for_triton(hidden, _LIMIT, down)
    assert isinstance(actual, Activations)
    assert_same_codes(actual, expected, torch.arange(tokens))


def assert_same_codes(actual: Activations, expected: Activations, rows: Tensor) -> None:
    assert actual.scales is not None and expected.scales is not None
    rows = rows.to(CUDA)
    values = [acts.values.view(torch.uint8)[rows] for acts in (actual, expected)]
    assert_bitwise_equal(values[0], values[1], "codes")
    assert_bitwise_equal(actual.scales[:, rows], expected.scales[:, rows], "scales")


def test_a_row_of_nan_harms_no_other() -> None:
    native, x = native_weight(random_fp8(256, 512)), random_rows(70, 512)
    whole = quantized_linear(x, native)
    x[2] = float("nan")
    harmed = quantized_linear(x, native)
    assert harmed[2].isnan().all()
    rest = [row for row in range(70) if row != 2]
    assert_bitwise_equal(harmed[rest], whole[rest])


def test_what_does_not_fit_is_named() -> None:
    native = native_weight(random_fp8(64, 256))
    with pytest.raises(TensorError, match=r"x: expected .* \[\.\.\., 256\]"):
        quantized_linear(torch.zeros(2, 128, dtype=torch.bfloat16, device=CUDA), native)
    gate_up, down = native_experts(random_fp4(3, 512, 256), random_fp4(3, 256, 256))
    with pytest.raises(TensorError, match="ids: expected"):
        ids = torch.zeros(2, 2, dtype=torch.int32, device=CUDA)
        experts(random_rows(2, 256), ids, torch.zeros(2, 2, device=CUDA), gate_up, down, _LIMIT)
