"""Packed masks over logits: one bit per token, least significant bit first."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt
from torch import Tensor


def mask_logits(logits: Tensor, masks: Tensor, rows: Tensor) -> None:
    """Set logits to -inf in place where the bit of a token is not set.

    Shapes: logits [N, V] f32, masks [M, ceil(V / 32)] i32, rows [M] i64 (the row of logits of each
    mask, without duplicates).  NaN stays, so that such rows are still detected.
    Batch-invariant: yes.

    This is the specification and, in numpy, the CPU implementation: each byte of a mask is looked
    up as eight limits, so that temporaries stay in the cache.
    """
    V = logits.shape[1]
    values, octets = logits.numpy(), masks.numpy().view(np.uint8)
    limits = np.empty((octets.shape[1], 8), dtype=np.float32)
    for row, mask in zip(rows.tolist(), octets, strict=True):
        np.take(_limits_of_octets(), mask, axis=0, out=limits, mode="clip")
        np.minimum(values[row], limits.reshape(-1)[:V], out=values[row])


@cache
def _limits_of_octets() -> npt.NDArray[np.float32]:
    """[256, 8]: inf where the bit of the byte is set, else -inf."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return np.where(bits, np.inf, -np.inf).astype(np.float32)
