"""Every code of every short format, both ways, against torch's own types."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.kernels.launch import has_native_fp8
from deepinfer.kernels.quant import triton_bits
from deepinfer.kernels.quant.formats import quantize_fp4
from deepinfer.kernels.testing import assert_bitwise_equal


@triton.jit
def _decode_kernel(codes, e4m3, e2m1, e8m0):
    i = tl.arange(0, 256)
    code = tl.load(codes + i)
    tl.store(e4m3 + i, triton_bits.e4m3_value(code))
    tl.store(e2m1 + i, triton_bits.e2m1_value(code))
    tl.store(e8m0 + i, triton_bits.e8m0_value(code))


@triton.jit
def _encode_kernel(x_ptr, e4m3, e2m1, bf16, SIZE: tl.constexpr, NATIVE: tl.constexpr):
    i = tl.arange(0, SIZE)
    x = tl.load(x_ptr + i)
    clamped = tl.minimum(tl.maximum(x, -448.0), 448.0)
    tl.store(e4m3 + i, triton_bits.e4m3_code(clamped, NATIVE).to(tl.uint8))
    tl.store(e2m1 + i, triton_bits.e2m1_code(x).to(tl.uint8))
    tl.store(bf16 + i, triton_bits.bf16_bits(x).to(tl.int16))


def test_decoding(device: torch.device) -> None:
    codes = torch.arange(256, dtype=torch.uint8, device=device)
    e4m3, e2m1, e8m0 = (torch.empty(256, device=device) for _ in range(3))
    _decode_kernel[(1,)](codes, e4m3, e2m1, e8m0)
    expected = codes.view(torch.float8_e4m3fn).float()
    assert_bitwise_equal(e4m3, torch.where(expected.isnan(), e4m3, expected), "e4m3")
    levels = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], device=device)
    assert_bitwise_equal(e2m1, torch.cat([levels, -levels]).repeat(16), "e2m1")
    scales = codes.view(torch.float8_e8m0fnu).float()
    assert_bitwise_equal(e8m0[1:255], scales[1:255], "e8m0")


def _hard_values(device: torch.device) -> Tensor:
    """All E4M3 and E2M1 values, the midpoints between them, their neighbours; signed zeros."""
    grid = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    middle = (grid[1:] + grid[:-1]) / 2
    base = torch.cat([grid, middle, middle.nextafter(grid[:-1]), middle.nextafter(grid[1:])])
    levels = torch.arange(0, 25) / 4
    values = torch.cat([base, levels, torch.tensor([1e-30, 500.0, 3e38])])
    padding = torch.randn(2048 - 2 * len(values)) * 3
    return torch.cat([values, -values, padding]).to(device)


def test_encoding(device: torch.device) -> None:
    x = _hard_values(device)
    e4m3, e2m1 = (torch.empty(2048, dtype=torch.uint8, device=device) for _ in range(2))
    bf16 = torch.empty(2048, dtype=torch.int16, device=device)
    for native in {False, has_native_fp8(device)}:
        _encode_kernel[(1,)](x, e4m3, e2m1, bf16, 2048, native)
        expected = x.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)
        assert_bitwise_equal(e4m3, expected, "e4m3")
    codes, _ = quantize_fp4(
        torch.cat([x.clamp(-6, 6)[:, None], torch.full((2048, 31), 6.0, device=device)], 1)
    )
    assert_bitwise_equal(e2m1, codes[:, 0], "e2m1")
    assert_bitwise_equal(bf16, x.to(torch.bfloat16).view(torch.int16), "bf16")
