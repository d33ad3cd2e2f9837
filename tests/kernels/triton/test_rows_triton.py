"""Norm, rotation, rounding and packing: Triton against the composed references."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from deepinfer.errors import TensorError
from deepinfer.kernels.gemm import Weight
from deepinfer.kernels.gemm.activations import quantize_activations
from deepinfer.kernels.norm.reference import rms_norm_reference
from deepinfer.kernels.quant import (
    unpack_index_rows,
    unpack_main_rows,
    unpack_window_rows,
)
from deepinfer.kernels.rope import rope_frequencies, rope_table
from deepinfer.kernels.rope.reference import apply_rope_reference
from deepinfer.kernels.rows import triton_kernel as rows
from deepinfer.kernels.rows.reference import (
    RowFormat,
    pack_latents_reference,
    store_latents_reference,
)
from deepinfer.kernels.rows.triton_projection import split_projection_triton
from deepinfer.kernels.testing import assert_bitwise_equal, assert_close

FORMATS: list[RowFormat] = ["window", "main", "index"]
UNPACK = {"window": unpack_window_rows, "main": unpack_main_rows, "index": unpack_index_rows}


def _x(device: torch.device, *shape: int) -> Tensor:
    """Values of very different sizes from row to row and from block to block."""
    x = torch.randn(shape) * torch.randn(shape[:-1]).mul(4).exp2()[..., None]
    x *= torch.randn(shape[-1] // 16).mul(3).exp2().repeat_interleave(16)
    return x.bfloat16().to(device)


def _rope(device: torch.device, tokens: int, rotary: int) -> tuple[Tensor, Tensor]:
    positions = torch.randint(0, 1 << 20, (tokens,))
    cos, sin = rope_table(rope_frequencies(rotary, 1e4), positions)
    return cos.to(device), sin.to(device)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(7, 5120), (3, 1280), (33, 512), (5, 2, 96), (0, 64)])
def test_norm(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
    x, weight = _x(device, *shape), torch.randn(shape[-1]).to(dtype).to(device)
    expected = rms_norm_reference(x, weight, 1e-20)
    # The sum of squares has another order: at most the last bit of bf16 may differ.
    assert_close(rows.rms_norm_triton(x, weight, 1e-20), expected, atol=0, rtol=2**-7)


def test_norm_of_zeros_and_of_rows_with_gaps(device: torch.device) -> None:
    weight = torch.randn(64, device=device)
    zeros = torch.zeros(2, 64, dtype=torch.bfloat16, device=device)
    assert_bitwise_equal(rows.rms_norm_triton(zeros, weight, 1e-20), zeros)
    wide = _x(device, 5, 256)
    assert_bitwise_equal(
        rows.rms_norm_triton(wide[:, 64:128], weight, 1e-6),
        rows.rms_norm_triton(wide[:, 64:128].contiguous(), weight, 1e-6),
    )


def test_a_row_does_not_depend_on_the_others(device: torch.device) -> None:
    x, weight = _x(device, 37, 512), torch.randn(512, device=device)
    together = rows.rms_norm_triton(x, weight, 1e-6)
    for row in (0, 17, 36):
        alone = rows.rms_norm_triton(x[row : row + 1], weight, 1e-6)
        assert_bitwise_equal(alone[0], together[row])


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("shape, rotary", [((5, 64, 512), 64), ((7, 128), 64), ((3, 3, 32), 32)])
def test_rope(shape: tuple[int, ...], rotary: int, inverse: bool, device: torch.device) -> None:
    x, rope = _x(device, *shape), _rope(device, shape[0], rotary)
    expected = apply_rope_reference(x, *rope, inverse)
    assert_bitwise_equal(rows.apply_rope_triton(x, *rope, inverse), expected)


@pytest.mark.parametrize("row_format", FORMATS)
@pytest.mark.parametrize("shape", [(9, 512), (3, 4, 128), (5, 96), (0, 64)])
def test_packed_rows(row_format: RowFormat, shape: tuple[int, ...], device: torch.device) -> None:
    x, rope = _x(device, *shape), _rope(device, shape[0], 32)
    expected = pack_latents_reference(x, rope, row_format)
    assert_bitwise_equal(rows.pack_latents_triton(x, rope, row_format), expected)


@pytest.mark.parametrize("row_format", FORMATS)
def test_special_values(row_format: RowFormat, device: torch.device) -> None:
    x = torch.zeros(6, 128)
    x[1] = torch.cat([torch.arange(64) / 8, -torch.arange(64) / 8])  # midpoints of E2M1
    x[2] = 2.0**-126
    x[3] = -0.0
    x[4, ::2] = 3e38
    x[5] = torch.arange(128) * 3.5 + 0.5
    x = x.bfloat16().to(device)
    rope = _rope(device, 6, 32)
    expected = pack_latents_reference(x, rope, row_format)
    assert_bitwise_equal(rows.pack_latents_triton(x, rope, row_format), expected)
    x[4, 7] = torch.inf
    x[5, 7] = torch.nan
    assert UNPACK[row_format](rows.pack_latents_triton(x, rope, row_format)).isfinite().all()


@pytest.mark.parametrize("row_format", FORMATS)
def test_scattered_into_a_pool_with_gaps(row_format: RowFormat, device: torch.device) -> None:
    x, rope = _x(device, 5, 128), _rope(device, 5, 64)
    weight = torch.randn(128, device=device).bfloat16()
    target = torch.tensor([7, -1, 0, 3, 9], device=device)
    num_bytes = pack_latents_reference(x, rope, row_format).shape[1]
    pool = torch.randint(0, 255, (11, num_bytes + 12), dtype=torch.uint8, device=device)
    before = pool.clone()
    rows.store_latents_triton(
        x, rope, row_format, pool[:, :num_bytes], target, weight=weight, eps=1e-6
    )
    normal = rows.rms_norm_triton(x, weight, 1e-6)
    store_latents_reference(normal, rope, row_format, before[:, :num_bytes], target)
    assert_bitwise_equal(pool, before)


@pytest.mark.parametrize("tokens, q_width, kv_width", [(5, 1280, 512), (9, 96, 64), (0, 64, 64)])
def test_split_projection(tokens: int, q_width: int, kv_width: int, device: torch.device) -> None:
    """Queries are quantised as by themselves; keys have the bits of ``store_latents``."""
    both, rope = _x(device, tokens, q_width + kv_width), _rope(device, tokens, 32)
    q_norm = torch.randn(q_width, device=device).bfloat16()
    kv_norm = torch.randn(kv_width, device=device).bfloat16()
    values = torch.randn(64, q_width).to(torch.float8_e4m3fn)
    scales = torch.full((2, q_width // 32), 127, dtype=torch.uint8).view(torch.float8_e8m0fnu)
    linear = Weight(values.to(device), scales.to(device))
    cache = torch.zeros(12, kv_width + kv_width // 32, dtype=torch.uint8, device=device)
    expected, target = cache.clone(), torch.randperm(12, device=device)[:tokens]
    latents = split_projection_triton(
        both, rope, cache, target, q_norm=q_norm, kv_norm=kv_norm, eps=1e-6, linear=linear
    )
    q, kv = both[:, :q_width], both[:, q_width:]
    rows.store_latents_triton(kv, rope, "window", expected, target, weight=kv_norm, eps=1e-6)
    assert_bitwise_equal(cache, expected)
    normed, acts = latents
    assert_close(normed, rms_norm_reference(q, q_norm, 1e-6), atol=0, rtol=2**-7)
    again = quantize_activations(normed, acts.path, acts.order)
    assert_bitwise_equal(acts.values, again.values)


def test_wrong_tensors_are_named(device: torch.device) -> None:
    x, weight = _x(device, 2, 64), torch.randn(32, device=device)
    with pytest.raises(TensorError, match=r"weight: expected contiguous torch.float32 \[64\]"):
        rows.rms_norm_triton(x, weight, 1e-6)
    with pytest.raises(TensorError, match="x: expected bf16"):
        rows.rms_norm_triton(x.float(), weight, 1e-6)
    with pytest.raises(TensorError, match="cache"):
        cache = torch.zeros(4, 99, dtype=torch.uint8, device=device)
        target = torch.zeros(2, dtype=torch.int64, device=device)
        rows.store_latents_triton(x, _rope(device, 2, 64), "main", cache, target)
