"""Packed masks over logits in Triton; only masks and forbidden logits are read or written."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.kernels.launch import cdiv, check_tensor, sizes
from deepinfer.kernels.relaunch import launch

from .checks import check_logits

_WORDS = 64


def mask_logits_triton(logits: Tensor, masks: Tensor, rows: Tensor) -> None:
    """``mask_logits``; the row stride of ``logits`` may exceed V.  The host does not
    synchronize."""
    _, vocab_size = check_logits("logits", logits)
    [num_masks], num_words = sizes("rows", rows, 1), cdiv(vocab_size, 32)
    check_tensor("masks", masks, torch.int32, (num_masks, num_words), logits)
    check_tensor("rows", rows, torch.int64, (num_masks,), logits)
    if num_masks:
        launch(mask_kernel, (cdiv(num_words, _WORDS), num_masks))(
            logits, masks, rows, logits.stride(0), num_words, vocab_size, WORDS=_WORDS,
            num_warps=4, enable_fp_fusion=True,
        )  # fmt: skip


@triton.jit
def mask_kernel(
    logits_ptr, masks_ptr, rows_ptr, row_stride, num_words, vocab_size, WORDS: tl.constexpr
):  # fmt: skip
    """One program per WORDS words of a mask, 32 logits each."""
    mask = tl.program_id(1).to(tl.int64)
    logits = logits_ptr + tl.load(rows_ptr + mask) * row_stride
    word = tl.program_id(0) * WORDS + tl.arange(0, WORDS)
    bits = tl.load(masks_ptr + mask * num_words + word, mask=word < num_words, other=-1)
    bit = tl.arange(0, 32)[None, :]
    token = word[:, None] * 32 + bit
    is_forbidden = ((bits[:, None] >> bit) & 1) == 0
    is_forbidden = is_forbidden & (token < vocab_size)
    value = tl.load(logits + token, mask=is_forbidden, other=0.0)
    is_number = value == value
    tl.store(logits + token, float("-inf"), mask=is_forbidden & is_number)
