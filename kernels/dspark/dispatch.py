"""Draft heads and verification: the reference on a CPU, Triton kernels on a GPU."""

from __future__ import annotations

from torch import Tensor

from deepinfer.kernels.gemm import Weight, fp32_linear
from deepinfer.kernels.placement import on_accelerator

from .reference import draft_confidence_reference
from .verify_reference import verify_drafts_reference


def markov_logits(base_logits: Tensor, previous: Tensor, head: Weight) -> Tensor:
    """Base logits [R, V] f32 corrected by the previous token: previous [R, r] bf16, head [V, r].

    Not a kernel of its own: on SM90 the GEMM adds the base logits in its epilogue.
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


def verify_drafts(
    target: Tensor,
    draft: Tensor,
    token_ids: Tensor,
    first: Tensor,
    lens: Tensor,
    temperature: Tensor,
    top_p: Tensor,
    top_k: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
) -> Tensor:
    """See ``verify_drafts_reference``."""
    blocks = (target, draft, token_ids, first, lens)
    params = (temperature, top_p, top_k, min_p, seeds, positions)
    if on_accelerator(target):
        from .triton_verify import verify_drafts_triton

        return verify_drafts_triton(*blocks, *params)
    return verify_drafts_reference(*blocks, *params)
