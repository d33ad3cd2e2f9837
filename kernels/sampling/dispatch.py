"""Sampling: the reference on a CPU, Triton kernels on a GPU."""

from __future__ import annotations

from torch import Tensor

from deepinfer.kernels.placement import on_accelerator

from . import bitmask, reference
from . import logits as plain


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_p: Tensor,
    top_k: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
) -> Tensor:
    """See ``reference.sample``; on a GPU the host does not synchronize."""
    if on_accelerator(logits):
        from .triton_kernel import sample_triton

        return sample_triton(logits, temperature, top_p, top_k, min_p, seeds, positions)
    return reference.sample(logits, temperature, top_p, top_k, min_p, seeds, positions)


def exponential_noise(seeds: Tensor, positions: Tensor, vocab_size: int) -> Tensor:
    """See ``reference.exponential_noise``."""
    if on_accelerator(seeds):
        from .triton_kernel import exponential_noise_triton

        return exponential_noise_triton(seeds, positions, vocab_size)
    return reference.exponential_noise(seeds, positions, vocab_size)


def mask_logits(logits: Tensor, masks: Tensor, rows: Tensor) -> None:
    """See ``bitmask.mask_logits``; on a device the host does not synchronize."""
    if logits.device.type == "cpu":
        bitmask.mask_logits(logits, masks, rows)
    else:
        from .triton_bitmask import mask_logits_triton

        mask_logits_triton(logits, masks, rows)


def penalize_logits(
    logits: Tensor, rows: Tensor, slots: Tensor, drafts: Tensor, marks: Tensor, penalties: Tensor
) -> None:
    """See ``logits.penalize_logits``; the same bits on a GPU."""
    if on_accelerator(logits):
        from .triton_penalties import penalize_logits_triton

        penalize_logits_triton(logits, rows, slots, drafts, marks, penalties)
    else:
        plain.penalize_logits(logits, rows, slots, drafts, marks, penalties)
