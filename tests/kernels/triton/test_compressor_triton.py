"""Pooling of tokens: Triton against the reference."""

from __future__ import annotations

import pytest
import torch

from deepinfer.kernels.compressor.reference import pool_tokens_reference
from deepinfer.kernels.compressor.triton_kernel import pool_tokens_triton
from deepinfer.kernels.testing import assert_bitwise_equal, assert_close


@pytest.mark.parametrize("width", [512, 96])
def test_pairs_within_a_pass_and_across(width: int, device: torch.device) -> None:
    """Three requests: the first at its beginning, the others where their rings end and begin."""
    starts, lengths, slots = [0, 15, 48], [5, 1, 20], [3, 0, 2]
    offsets = torch.cat([torch.arange(length) for length in lengths])
    each = torch.tensor(lengths)
    positions = torch.tensor(starts).repeat_interleave(each) + offsets
    numbers = (torch.tensor(slots).repeat_interleave(each), positions, offsets, torch.arange(26))
    numbers = tuple(number.to(device) for number in numbers)
    key_gate = torch.randn(26, 2, width).mul(3).to(device)
    ring = torch.randn(4, 16, 2, width).mul(3).to(device)
    expected = pool_tokens_reference(key_gate, ring, *numbers)
    actual = pool_tokens_triton(key_gate, ring, *numbers)
    assert_close(actual, expected, atol=1e-6, rtol=2**-7)
    alone = [number[6:7] for number in numbers[:3]]
    place = torch.zeros(1, dtype=torch.int64, device=device)
    one = pool_tokens_triton(key_gate[6:7], ring, alone[0], alone[1], place, place)
    ring[2, 48 % 16] = key_gate[6]
    later = (numbers[0][7:8], numbers[1][7:8], place, place)
    assert_bitwise_equal(pool_tokens_triton(key_gate[7:8], ring, *later), actual[7:8])
    assert one.shape == (1, width)
    assert pool_tokens_triton(key_gate[:0], ring, *(n[:0] for n in numbers)).shape == (0, width)
