"""Confidence of drafts in plain torch: the specification.

R requests, n drafts each, d width, V vocabulary, r Markov rank.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.errors import TensorError
from deepinfer.kernels.gemm import Weight, fp32_linear
from deepinfer.kernels.numeric import sigmoid


def draft_confidence_reference(
    hidden: Tensor, anchors: Tensor, drafts: Tensor, embed: Tensor, proj: Weight
) -> Tensor:
    """The probability that each draft is accepted, given that the drafts before it are.

    Shapes: hidden [R, n, d] bf16 (before the final norm), anchors [R] i64 (the token before the
    first draft), drafts [R, n] i64, embed [V, r] bf16 (Markov embedding of the token before a
    draft), proj [1, d + r]; returns [R, n] f32.  Raises: TensorError.
    """
    if len(proj.values) != 1 or drafts.shape != hidden.shape[:2] or len(anchors) != len(drafts):
        raise TensorError(
            f"proj, drafts, anchors: expected 1 row, {list(hidden.shape[:2])} and [{len(hidden)}], "
            f"found {len(proj.values)}, {list(drafts.shape)} and {list(anchors.shape)}"
        )
    previous = torch.cat([anchors[:, None], drafts[:, :-1]], dim=1)
    rows = torch.cat([hidden, embed[previous]], dim=-1)
    return sigmoid(fp32_linear(rows.flatten(0, 1), proj)).view(drafts.shape)
