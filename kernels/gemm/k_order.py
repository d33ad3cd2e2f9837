"""Orders in which the activations and the weight of a GEMM store their common dimension K."""

from __future__ import annotations

from enum import IntEnum

import torch
from torch import Tensor


class KOrder(IntEnum):
    """Order of each 128 along K in activations of the FP8 path.

    PLAIN: unchanged.
    SPLIT: even ones first, to match the even and the odd nibbles of an FP4 weight.
    FRAGMENT: the permutation ``fragment_order``.
    """

    PLAIN = 0
    SPLIT = 1
    FRAGMENT = 2


def fragment_order(x: Tensor) -> Tensor:
    """[..., K]: permute each 128 so that each of four threads holds a block of 32 in MMA fragments.

    Element 32 t + 8 i + 4 h + j moves to 32 i + 16 h + 4 t + j: in MMA i (K = 32) thread t reads
    4 t + j and 16 + 4 t + j.
    """
    parts = torch.unflatten(x, -1, (-1, 4, 4, 2, 4))  # group, t, i, h, j
    return parts.permute(*range(x.dim() - 1), -5, -3, -2, -4, -1).flatten(-5)


def plain_order(x: Tensor) -> Tensor:
    """The inverse of ``fragment_order``."""
    parts = torch.unflatten(x, -1, (-1, 4, 2, 4, 4))  # group, i, h, t, j
    return parts.permute(*range(x.dim() - 1), -5, -2, -4, -3, -1).flatten(-5)
