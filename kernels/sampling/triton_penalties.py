"""Penalties in Triton: all rows of a step in one launch, in place."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.kernels.launch import cdiv, check_tensor, sizes
from deepinfer.kernels.relaunch import launch

from .checks import check_logits

_TILE = 1024


def penalize_logits_triton(
    logits: Tensor, rows: Tensor, slots: Tensor, drafts: Tensor, marks: Tensor, penalties: Tensor
) -> None:
    """As ``logits.penalize_logits``, with the same bits; the row stride of ``logits`` may exceed V.

    Batch-invariant: yes.  The host does not synchronize.
    """
    _, vocab_size = check_logits("logits", logits)
    [count] = sizes("rows", rows, 1)
    (num_drafts, _), (num_slots, _) = sizes("drafts", drafts, 2), sizes("marks", marks, 2)
    check_tensor("rows", rows, torch.int64, (count,), logits)
    check_tensor("slots", slots, torch.int64, (count,), logits)
    check_tensor("drafts", drafts, torch.int64, (num_drafts, count), logits)
    check_tensor("marks", marks, torch.int32, (num_slots, vocab_size), logits)
    check_tensor("penalties", penalties, torch.float32, (num_slots, 3), logits)
    if count:
        launch(penalize_kernel, (cdiv(vocab_size, _TILE), count))(
            logits, rows, slots, drafts, marks, penalties, logits.stride(0), count, num_drafts,
            vocab_size, TILE=_TILE, num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip


# Sizes that depend on the batch must not cause recompilation.
@triton.jit(do_not_specialize=["num_rows", "num_drafts"])
def penalize_kernel(
    logits_ptr, rows_ptr, slots_ptr, drafts_ptr, marks_ptr, penalties_ptr, row_stride, num_rows,
    num_drafts, vocab_size, TILE: tl.constexpr,
):  # fmt: skip
    """One program per TILE tokens of a row."""
    index = tl.program_id(1).to(tl.int64)
    token = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = token < vocab_size
    slot = tl.load(slots_ptr + index)
    logits = logits_ptr + tl.load(rows_ptr + index) * row_stride + token
    marks = tl.load(marks_ptr + slot * vocab_size + token, mask=inside, other=0)
    count = marks >> 1
    for draft in range(num_drafts):
        count += (token == tl.load(drafts_ptr + draft * num_rows + index)).to(tl.int32)
    is_output = count > 0
    is_seen = is_output | ((marks & 1) != 0)
    presence = tl.load(penalties_ptr + slot * 3)
    frequency = tl.load(penalties_ptr + slot * 3 + 1)
    repetition = tl.load(penalties_ptr + slot * 3 + 2)
    value = tl.load(logits, mask=inside & is_seen, other=0.0)
    factor = tl.where(is_seen, repetition, 1.0)
    scaled = tl.where(value > 0, tl.div_rn(value, factor), value * factor)
    scaled = scaled - frequency * count.to(tl.float32) - presence * is_output.to(tl.float32)
    # Most tokens of a vocabulary were never seen: their logits are not read or written.
    tl.store(logits, scaled, mask=inside & is_seen)
