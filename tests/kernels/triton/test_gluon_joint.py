"""The shared expert's gates and ups in one launch with the router's product, on NVIDIA SM90: the
bits of both apart."""

from __future__ import annotations

import pytest
import torch
from gemm_operands import CUDA, random_fp8, random_rows
from torch import Tensor

from deepinfer.kernels.gemm import HopperWeight, Weight, native_gate_up, native_weight
from deepinfer.kernels.gemm.activations import Activations, quantize_activations
from deepinfer.kernels.gemm.gluon_joint_launch import gated_joint_gluon
from deepinfer.kernels.gemm.gluon_kernel import gated_rows_gluon
from deepinfer.kernels.gemm.hopper_tile import WIDE_FP8
from deepinfer.kernels.gemm.matrix_path import MatrixPath
from deepinfer.kernels.gemm.triton_kernel import fp32_linear_parts_triton
from deepinfer.kernels.moe import Slots, gated_linear, gated_linear_and_logits, route
from deepinfer.kernels.testing import assert_bitwise_equal

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("needs_sm90")]

_LIMIT = 10.0


# The last round of the first product: few tiles, nearly all, none.
@pytest.mark.parametrize(
    "rows, n, m, k",
    [(1, 256, 64, 256), (130, 512, 192, 768), (300, 4608, 384, 5120), (1536, 4608, 384, 5120),
     (5400, 768, 128, 512), (4224, 1024, 320, 512)],
)  # fmt: skip
def test_bits_of_both_products(rows: int, n: int, m: int, k: int) -> None:
    """Rows of NaN, too; counters become zero."""
    gate_up = native_gate_up(random_fp8(n, k))
    gate = Weight((torch.randn(m, k, device=CUDA) / k**0.5).to(torch.bfloat16))
    assert isinstance(gate_up, HopperWeight)
    x = random_rows(rows, k)
    x[rows // 2, 3], x[rows - 1, 100] = float("nan"), float("inf")
    acts = quantize_activations(x, MatrixPath.FP8, gate_up.order)
    expected = gated_rows_gluon(acts, gate_up, WIDE_FP8, gate_up.order, _LIMIT)
    parts = fp32_linear_parts_triton(x, gate, 4)
    for _ in range(3):
        preset = torch.full((3 * m + 1,), 7, dtype=torch.int32, device=CUDA)
        form = acts, gate_up, gate_up.order, _LIMIT, x, gate, 4
        out, sums = gated_joint_gluon(*form, preset=(preset, -1))
        assert_same_activations(out, expected)
        assert_bitwise_equal(sums, parts)
        assert (preset == -1).all()


@pytest.mark.parametrize("rows", [1, 48, 300, 512, 1536, 4096])
def test_shared_expert_and_choice(rows: int) -> None:
    """In one launch or in two, whichever is faster: the same activations and the same experts."""
    gate_up, down = native_gate_up(random_fp8(4608, 5120)), native_weight(random_fp8(5120, 2304))
    gate = Weight((torch.randn(384, 5120, device=CUDA) / 70).to(torch.bfloat16))
    bias, x = torch.randn(384, device=CUDA) / 10, random_rows(rows, 5120)
    assert isinstance(gate_up, HopperWeight)
    acts = quantize_activations(x, MatrixPath.FP8, gate_up.order)
    slots = Slots.empty(rows, 6, 384, CUDA)
    activated, logits = gated_linear_and_logits(x, acts, gate_up, _LIMIT, down, gate, slots)
    assert (logits is not None) == (rows in (512, 1536, 4096))
    assert_same_activations(activated, gated_linear(acts, gate_up, _LIMIT, down))
    form = {"num_experts_per_tok": 6, "normalize": True, "scaling_factor": 1.5}
    ids, weights = route(x, gate, bias, **form, slots=slots, logits=logits)  # type: ignore[arg-type]
    expected = route(x, gate, bias, **form)  # type: ignore[arg-type]
    assert_bitwise_equal(ids, expected[0])
    assert_bitwise_equal(weights, expected[1])
    assert slots.total.tolist() == torch.bincount(ids.flatten(), minlength=384).tolist()


def assert_same_activations(actual: Activations | Tensor, expected: Activations | Tensor) -> None:
    assert isinstance(actual, Activations) and isinstance(expected, Activations)
    codes = [acts.values.view(torch.uint8) for acts in (actual, expected)]
    assert_bitwise_equal(*codes, "codes")
    assert actual.scales is not None and expected.scales is not None
    rows = len(codes[0])
    assert_bitwise_equal(actual.scales[:, :rows], expected.scales[:, :rows], "scales")
