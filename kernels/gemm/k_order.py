"""Orders in which activations and weights of a product hold their common dimension K."""

from __future__ import annotations

from enum import IntEnum

import torch
from torch import Tensor


class KOrder(IntEnum):
    """Order of the numbers of each 128 in activations of the FP8 path.

    PLAIN: as they are.
    SPLIT: even ones first, as the even and the odd nibbles of an FP4 weight want them.
    FRAGMENT: as ``fragment_order`` puts them.
    """

    PLAIN = 0
    SPLIT = 1
    FRAGMENT = 2


def fragment_order(x: Tensor) -> Tensor:
    """[..., K]: each 128 in the order in which four threads hold a block of 32 each.

    Number 32 t + 8 i + 4 h + j moves to 32 i + 16 h + 4 t + j: thread t of the matrix instruction i
    reads 4 t + j and 16 + 4 t + j.
    """
    parts = torch.unflatten(x, -1, (-1, 4, 4, 2, 4))  # group, t, i, h, j
    return parts.permute(*range(x.dim() - 1), -5, -3, -2, -4, -1).flatten(-5)


def plain_order(x: Tensor) -> Tensor:
    """The inverse of ``fragment_order``."""
    parts = torch.unflatten(x, -1, (-1, 4, 2, 4, 4))  # group, i, h, t, j
    return parts.permute(*range(x.dim() - 1), -5, -2, -4, -3, -1).flatten(-5)
