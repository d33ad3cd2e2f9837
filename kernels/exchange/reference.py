"""Copy of rows to a memory address, in plain Python: the specification."""

from __future__ import annotations

import ctypes

from torch import Tensor


def copy_blocks_reference(source: Tensor, rows: Tensor, address: int, targets: Tensor) -> None:
    """Copy row ``rows[i]`` of ``source`` to row ``targets[i]`` at ``address``, in own or peer
    memory.

    Shapes: source [B, n] u8, contiguous; rows, targets [M] i64; rows at ``address`` have n bytes,
    too.  On a GPU it is fastest if n and the address are multiples of 16 bytes.
    """
    width = source.shape[1]
    for row, target in zip(rows.tolist(), targets.tolist(), strict=True):
        ctypes.memmove(address + target * width, source[row].data_ptr(), width)
