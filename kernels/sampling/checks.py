"""Checks of the logits that GPU kernels take."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.errors import TensorError
from deepinfer.kernels.launch import describe, sizes


def check_logits(name: str, x: Tensor) -> tuple[int, int]:
    """Check x [N, V] f32, whose row stride may exceed V; returns N and V.

    Raises: TensorError that names the tensor, what was expected and what was found.
    """
    rows, vocab_size = sizes(name, x, 2)
    if x.dtype != torch.float32 or (x.stride(1) != 1 and vocab_size > 1):
        raise TensorError(f"{name}: expected contiguous torch.float32 rows, found {describe(x)}")
    return rows, vocab_size
