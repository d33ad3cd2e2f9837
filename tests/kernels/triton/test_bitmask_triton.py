"""Packed masks: Triton against the reference, the reference against its definition."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from deepinfer.errors import TensorError
from deepinfer.kernels.sampling.bitmask import mask_logits
from deepinfer.kernels.sampling.triton_bitmask import mask_logits_triton
from deepinfer.kernels.testing import assert_bitwise_equal


def _masks(num_masks: int, vocab_size: int) -> Tensor:
    words = torch.randint(-(2**31), 2**31, (num_masks, -(-vocab_size // 32)))
    words[: num_masks // 2] |= torch.randint(-(2**31), 2**31, words.shape)[: num_masks // 2]
    return words.int()


def _one_by_one(logits: Tensor, masks: Tensor, rows: Tensor) -> Tensor:
    found = logits.clone()
    for row, mask in zip(rows.tolist(), masks.tolist(), strict=True):
        for token in range(logits.shape[1]):
            if not mask[token // 32] >> token % 32 & 1 and not math.isnan(found[row, token]):
                found[row, token] = -math.inf
    return found


@pytest.mark.parametrize(
    "num_rows, num_masks, vocab_size",
    [(5, 3, 1000), (1, 1, 1), (4, 0, 64), (0, 0, 7), (3, 3, 4129)],
)
def test_forbidden_logits_and_no_others(
    num_rows: int, num_masks: int, vocab_size: int, device: torch.device
) -> None:
    logits = torch.randn(num_rows, vocab_size)
    if num_rows:
        logits[0, :: max(1, vocab_size // 3)] = math.nan
        logits[-1, vocab_size // 2] = math.inf
    masks, rows = _masks(num_masks, vocab_size), torch.randperm(num_rows)[:num_masks]
    expected = _one_by_one(logits, masks, rows)
    on_host, on_device = logits.clone(), logits.to(device, copy=True)
    mask_logits(on_host, masks, rows)
    mask_logits_triton(on_device, masks.to(device), rows.to(device))
    for found in (on_host, on_device.cpu()):
        assert_bitwise_equal(found.nan_to_num(nan=1e9), expected.nan_to_num(nan=1e9))


def test_rows_with_gaps(device: torch.device) -> None:
    logits = torch.randn(3, 200, device=device)
    masks, rows = _masks(2, 100).to(device), torch.tensor([2, 0], device=device)
    expected = logits.clone()
    dense = logits[:, :100].contiguous()
    mask_logits_triton(dense, masks, rows)
    expected[:, :100] = dense
    mask_logits_triton(logits[:, :100], masks, rows)
    assert_bitwise_equal(logits, expected)


def test_wrong_tensors_are_named(device: torch.device) -> None:
    logits, rows = (
        torch.randn(2, 100, device=device),
        torch.zeros(1, dtype=torch.int64, device=device),
    )
    with pytest.raises(TensorError, match=r"masks: expected contiguous torch.int32 \[1, 4\]"):
        mask_logits_triton(logits, _masks(1, 64).to(device), rows)
    with pytest.raises(TensorError, match="logits: expected contiguous torch.float32"):
        mask_logits_triton(logits.half(), _masks(1, 100).to(device), rows)
