"""Elementwise functions whose bits do not depend on where in a tensor an element lies.

torch's own CPU ``sigmoid``, ``silu`` and ``softplus`` use different code for the last few elements
of a tensor, so a value would depend on the batch around it.  ``exp`` and ``log1p`` do not.
"""

from __future__ import annotations

import torch
from torch import Tensor


def sigmoid(x: Tensor) -> Tensor:
    """``1 / (1 + exp(-x))``; any shape, fp32."""
    return torch.reciprocal(torch.exp(-x) + 1.0)


def silu(x: Tensor) -> Tensor:
    """``x * sigmoid(x)``; any shape, fp32."""
    return x / (torch.exp(-x) + 1.0)


def softplus(x: Tensor) -> Tensor:
    """``log(1 + exp(x))``, and ``x`` itself above 20; any shape, fp32."""
    return torch.where(x > 20.0, x, torch.log1p(torch.exp(x.clamp(max=20.0))))
