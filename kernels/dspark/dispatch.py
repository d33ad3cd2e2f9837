"""Draft heads on the device of their tensors."""

from __future__ import annotations

from torch import Tensor

from deepinfer.kernels.gemm import Weight, fp32_linear
from deepinfer.kernels.placement import on_accelerator

from .reference import draft_confidence_reference


def markov_logits(base_logits: Tensor, previous: Tensor, head: Weight) -> Tensor:
    """Base logits corrected by the token before: [R, V] f32, previous [R, r] bf16, head [V, r].

    No kernel of its own: on SM90 the product adds what it is given in the same launch.
    """
    return fp32_linear(previous, head, addend=base_logits)


def draft_confidence(
    hidden: Tensor, anchors: Tensor, drafts: Tensor, embed: Tensor, proj: Weight
) -> Tensor:
    """See ``draft_confidence_reference``."""
    if on_accelerator(hidden):
        from .triton_kernel import draft_confidence_triton

        return draft_confidence_triton(hidden, anchors, drafts, embed, proj)
    return draft_confidence_reference(hidden, anchors, drafts, embed, proj)
