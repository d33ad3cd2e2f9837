"""Engram: Triton against the references."""

from __future__ import annotations

import pytest
import torch

from deepinfer.errors import TensorError
from deepinfer.kernels.engram import engram_lookup
from deepinfer.kernels.engram import triton_kernel as engram
from deepinfer.kernels.engram.reference import (
    engram_gate_reference,
    engram_hash_reference,
    engram_lookup_reference,
)
from deepinfer.kernels.testing import assert_bitwise_equal, assert_close

# Layer 1 of the released model: multipliers and the first primes of each order.
MULTIPLIERS = [76632096046245, 4839876093313, 35959672319349, 73987337458391]
PRIMES = [
    [16000057, 16000079, 16000081],
    [16000189, 16000207, 16000211],
    [16000339, 16000381, 16000393],
]


@pytest.mark.parametrize("tokens", [0, 1, 130])
def test_hash(tokens: int, device: torch.device) -> None:
    lookback = torch.randint(0, 99092, (tokens, 4), device=device)
    lookback[:1] = 99091  # the largest products
    primes = torch.tensor(PRIMES, device=device)
    ends = primes.flatten().cumsum(0).view_as(primes)
    arguments = (lookback, torch.tensor(MULTIPLIERS, device=device), primes, ends - primes)
    expected = engram_hash_reference(*arguments)
    assert_bitwise_equal(engram.engram_hash_triton(*arguments), expected)


def test_hash_of_the_published_example(device: torch.device) -> None:
    """Compressed id 100 after nothing (pad 2): the first rows of each order of layer 1."""
    lookback = torch.tensor([[100, 2, 2, 2]], device=device)
    primes = torch.tensor(PRIMES, device=device)
    multipliers = torch.tensor(MULTIPLIERS, device=device)
    rows = engram.engram_hash_triton(lookback, multipliers, primes, torch.zeros_like(primes))
    assert rows[0, 0].item() == 4052413
    assert rows[0, 1].item() == 23667694 - 16000057


@pytest.mark.parametrize(
    "shape, width", [((5, 24), 256), ((1, 3), 32), ((0, 24), 64), ((3, 1), 96)]
)
def test_lookup(shape: tuple[int, int], width: int, device: torch.device) -> None:
    codes = torch.randint(0, 256, (50, width), dtype=torch.uint8)
    codes[codes & 0x7F == 0x7F] = 0  # no NaN in a checkpoint
    table = codes.view(torch.float8_e4m3fn).to(device)
    exponents = torch.randint(110, 140, (50, width // 32), dtype=torch.uint8)
    scales = exponents.view(torch.float8_e8m0fnu).to(device)
    rows = torch.randint(0, 50, shape, device=device)
    expected = engram_lookup_reference(table, scales, rows)
    assert_bitwise_equal(engram.engram_lookup_triton(table, scales, rows), expected)


def test_lookup_of_every_scale(device: torch.device) -> None:
    """0 is that of zeros; 255, which is no number, gives none."""
    codes = torch.randint(0, 256, (256, 64), dtype=torch.uint8)
    codes[codes & 0x7F == 0x7F] = 0
    codes[0] = 0
    scales = torch.arange(256, dtype=torch.uint8)[:, None].expand(-1, 2).contiguous()
    table = codes.view(torch.float8_e4m3fn).to(device)
    factors = scales.view(torch.float8_e8m0fnu).to(device)
    rows = torch.arange(256, device=device)[:, None]
    out = engram.engram_lookup_triton(table, factors, rows)
    assert_bitwise_equal(out[:255], engram_lookup_reference(table, factors, rows)[:255])
    assert not out[255].isfinite().any()


@pytest.mark.parametrize("is_pinned", [False, True])
def test_lookup_in_host_memory(is_pinned: bool, device: torch.device) -> None:
    if is_pinned and device.type != "cuda":
        pytest.skip("pinned memory needs a GPU")
    table = torch.randint(0, 0x7F, (50, 64), dtype=torch.uint8).view(torch.float8_e4m3fn)
    scales = torch.randint(110, 140, (50, 2), dtype=torch.uint8).view(torch.float8_e8m0fnu)
    rows = torch.randint(0, 50, (5, 24))
    expected = engram_lookup_reference(table, scales, rows)
    if is_pinned:
        table, scales = (x.view(torch.uint8).pin_memory().view(x.dtype) for x in (table, scales))
    assert_bitwise_equal(engram_lookup(table, scales, rows.to(device)).cpu(), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(2, 4, 5120), (3, 2, 96), (0, 4, 64)])
def test_gate(shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> None:
    tokens, num_streams, width = shape
    streams = torch.randn(shape).bfloat16().to(device)
    key_value = torch.randn(tokens, (num_streams + 1) * width).bfloat16().to(device)
    weights = torch.randn(2, num_streams, width).to(dtype).to(device)
    if tokens:
        key_value[0, :width] = 0  # a dot product of exactly 0
    arguments = (streams, key_value, weights[0], weights[1])
    expected = engram_gate_reference(*arguments)
    assert_close(engram.engram_gate_triton(*arguments), expected, atol=1e-3, rtol=2**-7)


def test_equal_streams_without_copies(device: torch.device) -> None:
    streams = torch.randn(3, 1, 64).bfloat16().to(device).expand(-1, 4, -1)
    key_value = torch.randn(3, 320).bfloat16().to(device)
    weights = torch.randn(2, 4, 64, device=device)
    assert_bitwise_equal(
        engram.engram_gate_triton(streams, key_value, *weights),
        engram.engram_gate_triton(streams.contiguous(), key_value, *weights),
    )


def test_rows_beyond_4_gib(device: torch.device) -> None:
    if device.type != "cuda":
        pytest.skip("allocates 5 GiB")
    table = torch.empty(18_000_000, 256, dtype=torch.uint8, device=device)
    scales = torch.full((len(table), 8), 127, dtype=torch.uint8, device=device)
    table[-1] = 0x38  # 1.0
    rows = torch.tensor([[len(table) - 1]], device=device)
    out = engram.engram_lookup_triton(
        table.view(torch.float8_e4m3fn), scales.view(torch.float8_e8m0fnu), rows
    )
    assert_bitwise_equal(out, torch.ones_like(out))


def test_wrong_tensors_are_named(device: torch.device) -> None:
    rows = torch.zeros(1, 1, dtype=torch.int64, device=device)
    table = torch.zeros(4, 64, dtype=torch.uint8, device=device)
    with pytest.raises(TensorError, match="table: expected contiguous torch.float8_e4m3fn"):
        engram.engram_lookup_triton(table, table, rows)
