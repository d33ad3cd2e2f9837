"""Penalties of all rows in one launch: the bits of one row after the other, on either path."""

from __future__ import annotations

import math

import pytest
import torch

from deepinfer.kernels.sampling.logits import apply_penalties, penalize_logits
from deepinfer.kernels.sampling.triton_penalties import penalize_logits_triton
from deepinfer.kernels.testing import assert_bitwise_equal


@pytest.mark.parametrize(
    "num_rows, num_penalized, num_drafts, vocab_size",
    [(7, 5, 3, 1000), (1, 1, 0, 1), (4, 0, 2, 64), (0, 0, 0, 7), (3, 3, 5, 2049)],
)
def test_the_bits_of_the_reference(
    num_rows: int, num_penalized: int, num_drafts: int, vocab_size: int, device: torch.device
) -> None:
    logits = torch.randn(num_rows, vocab_size) * 4
    if num_rows:
        logits[0, 0], logits[-1, vocab_size // 2], logits[-1, -1] = math.nan, math.inf, -math.inf
    rows = torch.randperm(num_rows)[:num_penalized]
    slots = torch.randint(0, 4, (num_penalized,))
    drafts = torch.randint(-1, min(vocab_size, 9), (num_drafts, num_penalized))
    drafts[1:2] = drafts[:1]  # the same token twice
    marks = torch.randint(0, 6, (4, vocab_size), dtype=torch.int32)
    marks *= torch.rand(4, vocab_size) < 0.5
    penalties = torch.tensor([[0.5, 0.3, 1.7], [-2.0, 0.0, 1.0], [0.0, 1.1, 0.3], [0.0, 0.0, 1.2]])
    expected = logits.clone()
    for place, row in enumerate(rows.tolist()):
        mark, slot = marks[slots[place]], int(slots[place])
        counts = mark >> 1
        for token in drafts[:, place].tolist():
            if token >= 0:
                counts[token] += 1
        is_prompt, own = (mark & 1).bool(), penalties[slot : slot + 1]
        expected[row] = apply_penalties(
            logits[row : row + 1], counts[None], is_prompt[None], *own.t()
        )[0]
    on_host, on_device = logits.clone(), logits.to(device, copy=True)
    operands = (rows, slots, drafts, marks, penalties)
    penalize_logits(on_host, *operands)
    penalize_logits_triton(on_device, *(x.to(device) for x in operands))
    for found in (on_host, on_device.cpu()):
        assert_bitwise_equal(found.nan_to_num(nan=1e9), expected.nan_to_num(nan=1e9))


def test_rows_with_gaps(device: torch.device) -> None:
    wide = torch.randn(3, 200, device=device)
    expected = wide.clone()
    zeros = torch.zeros(2, dtype=torch.int64, device=device)
    operands = (
        torch.tensor([2, 0], device=device), zeros, zeros[:0, None].expand(0, 2).contiguous(),
        torch.ones(1, 100, dtype=torch.int32, device=device),
        torch.tensor([[0.0, 0.0, 2.0]], device=device),
    )  # fmt: skip
    penalize_logits(expected[:, :100], *operands)
    penalize_logits_triton(wide[:, :100], *operands)
    assert_bitwise_equal(wide, expected)
    assert not torch.equal(wide[2], torch.zeros_like(wide[2]))
