"""Draft heads in plain torch: the specification.  R requests, V vocabulary, r Markov rank."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.errors import TensorError
from deepinfer.kernels.gemm import Weight, fp32_linear


def markov_logits_reference(base_logits: Tensor, previous: Tensor, head: Weight) -> Tensor:
    """Base logits corrected by the token before: [R, V] f32, previous [R, r] bf16, head [V, r]."""
    return fp32_linear(previous, head, addend=base_logits)


def confidence_logits_reference(hidden: Tensor, previous: Tensor, proj: Weight) -> Tensor:
    """Logit of the chance that a draft is accepted, given that those before it are.

    Shapes: hidden [N, d] bf16 (before the final norm), previous [N, r] bf16: Markov embedding of
    the token before; proj [1, d + r]; returns [N] f32.  Raises: TensorError.
    """
    if len(hidden) != len(previous) or len(proj.values) != 1:
        raise TensorError(
            f"previous, proj: expected {len(hidden)} rows and 1, found {len(previous)} and "
            f"{len(proj.values)}"
        )
    return fp32_linear(torch.cat([hidden, previous], dim=-1), proj)[:, 0]
