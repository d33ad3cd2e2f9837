"""Every launcher names the tensor that it cannot take: wrong dtype, device, size or layout.

Launchers for SM90 are in a process of their own, where they are rehearsed (``hopper_operands.py``).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from operand_entries import BF16, ENTRIES, F32, I32, U8, fp4_scales, new, weight_of
from torch import Tensor

from deepinfer.errors import TensorError
from deepinfer.kernels.gemm import Weight
from deepinfer.kernels.gemm import triton_kernel as gemm
from deepinfer.kernels.gemm.activations import quantize_activations
from deepinfer.kernels.gemm.k_order import KOrder
from deepinfer.kernels.gemm.matrix_path import MatrixPath
from deepinfer.kernels.moe.triton_kernel import sum_rows_triton
from deepinfer.kernels.moe.triton_swiglu import swiglu_for_triton
from deepinfer.kernels.rows import triton_kernel as rows
from deepinfer.kernels.testing import assert_bitwise_equal

# What launchers call tensors that are parts of an argument.
NAMES = {
    "values": "weight|gate|gate_up|fn", "scales": "weight|gate_up|scales", "target": "rows",
    "values_2": "down", "scales_2": "down", "norm": "weight", "cos": "rope", "sin": "rope",
    "both": "x", "q_norm": "weight",
}  # fmt: skip


def _other(x: Tensor) -> Tensor:
    return x.to(torch.float64 if x.dtype.itemsize > 1 else torch.int16)


@pytest.mark.parametrize("name", ENTRIES)
def test_what_is_refused_is_named(name: str) -> None:
    """Another dtype; and sizes and devices, where one of two tensors that disagree is named."""
    entry = ENTRIES[name]
    entry.call(**entry.tensors)
    for tensor, x in entry.tensors.items():
        own = rf"\b({tensor}|{NAMES.get(tensor, tensor)})\b"
        with pytest.raises(TensorError, match=own):
            entry.call(**entry.tensors | {tensor: _other(x)})
        with pytest.raises(TensorError, match="expected|divide|need"):
            entry.call(**entry.tensors | {tensor: x.to("meta")})
        for axis in set(range(x.dim())) - set(entry.free.get(tensor, ())):
            shorter = x.narrow(axis, 0, x.shape[axis] - 1).contiguous()
            with pytest.raises(TensorError, match="expected|divide|need"):
                entry.call(**entry.tensors | {tensor: shorter})


@pytest.mark.parametrize("name", ENTRIES)
def test_dimensions_are_counted(name: str) -> None:
    entry = ENTRIES[name]
    for tensor, x in entry.tensors.items():
        for fewer in (x[0].contiguous(), x.flatten()[0]):
            with pytest.raises(TensorError):
                entry.call(**entry.tensors | {tensor: fewer})
        if tensor not in entry.leads:
            with pytest.raises(TensorError):
                entry.call(**entry.tensors | {tensor: x[None]})


def test_a_lone_number_is_no_row_to_quantise() -> None:
    weight = Weight(**weight_of(32, 32))
    for x in (new(BF16), new(BF16, 64), new(BF16, 1, 3, 64)):
        with pytest.raises(TensorError, match="gate_up: expected 2 dimensions"):
            swiglu_for_triton(x, 10.0, weight)
        with pytest.raises(TensorError, match="x: expected 2 dimensions"):
            quantize_activations(x, MatrixPath.DECODED, KOrder.PLAIN)


def test_rows_to_store_are_one_of_each_token() -> None:
    """Not several, of which a list of one row each would be read past its end."""
    tensors = ENTRIES["stored latents"].tensors
    with pytest.raises(TensorError, match="x: expected 2 dimensions"):
        ENTRIES["stored latents"].call(**tensors | {"x": new(BF16, 3, 2, 64)})


def test_rotation_is_by_pairs_of_the_row() -> None:
    x = new(BF16, 3, 64)
    for rotary in (15, 66):
        with pytest.raises(TensorError, match="even number of at most 64"):
            rows.apply_rope_triton(x, new(F32, 3, rotary), new(F32, 3, rotary))


@pytest.mark.parametrize("name, tensor", [("groups", "values"), ("experts", "values")])
def test_there_is_a_weight(name: str, tensor: str) -> None:
    tensors = ENTRIES[name].tensors
    for values in (tensors[tensor][:0], tensors[tensor].flatten()[0]):
        with pytest.raises(TensorError, match="expected one .N, K. or more"):
            ENTRIES[name].call(**tensors | {tensor: values})


def test_rows_are_of_whole_tokens_and_parts() -> None:
    for per_token in (0, -1, 4):
        with pytest.raises(TensorError, match=f"row: expected {per_token} of each token"):
            sum_rows_triton(new(BF16, 6, 64), new(I32, 6), per_token)
    for parts, n in ((0, 32), (-1, 32), (3, 32), (2, 0)):
        with pytest.raises(TensorError, match=f"weight: .* {parts} parts divide"):
            gemm.fp32_linear_parts_triton(new(BF16, 3, 64), Weight(new(F32, n, 64)), parts)


def test_compressed_rows_come_with_their_list() -> None:
    tensors = ENTRIES["attention"].tensors
    for missing in ("main_rows", "main_index"):
        with pytest.raises(TensorError, match="both or none"):
            ENTRIES["attention"].call(**tensors | {missing: None})


def test_activations_of_another_weight_are_refused() -> None:
    x = new(BF16, 3, 64)
    wide, fp4 = Weight(**weight_of(32, 256)), Weight(new(torch.int8, 32, 32), fp4_scales(32, 64))
    decoded = quantize_activations(x, MatrixPath.DECODED, KOrder.PLAIN)
    gemm.quantized_linear_triton(decoded, fp4)
    for acts, weight in (
        (decoded, wide),
        (quantize_activations(x, MatrixPath.FP8, KOrder.PLAIN), fp4),
    ):
        with pytest.raises(TensorError, match="x: expected activations"):
            gemm.quantized_linear_triton(acts, weight)


@pytest.mark.parametrize("name", ENTRIES)
def test_gaps_between_numbers_are_refused_or_seen(name: str) -> None:
    entry = ENTRIES[name]
    expected = entry.call(**entry.tensors)
    for tensor, x in entry.tensors.items():
        room = torch.zeros(*x.shape, 2, dtype=U8).repeat_interleave(x.dtype.itemsize, -1)
        gaps = room.view(x.dtype)[..., 0]
        gaps.copy_(x)
        try:
            actual = entry.call(**entry.tensors | {tensor: gaps})
        except TensorError as error:
            assert "contiguous" in str(error) or "strides" in str(error)
        else:
            if isinstance(expected, Tensor):
                assert_bitwise_equal(actual, expected, tensor)


def test_launchers_for_hopper_refuse_the_same() -> None:
    """And what was quantised or prepared for another weight."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-P", str(Path(__file__).with_name("hopper_operands.py"))]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["faults"] == []
    assert found["refused"] > 100
