"""``DraftBacklog``: verified tokens that the draft stages have not seen yet.

A step without drafts only stores the stages' inputs.  They are processed together before the next
draft; if drafting does not resume within a window, most of them never are.
"""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor

MAX_BYTES = 64 << 20


class DraftBacklog:
    """The inputs of ``Model.seed_draft``, pass by pass.

    ``window``: passes older than this are dropped, since every decoding request is in every decode
    step and no draft looks further back.
    """

    def __init__(self, num_slots: int, window: int, device: str) -> None:
        self._kept: deque[tuple[Tensor, Tensor, Tensor]] = deque(maxlen=window)
        self._num_kept = 0
        # By slot, the first valid pass: earlier ones belong to another request.
        self._since = torch.zeros(num_slots, dtype=torch.int64, device=device)

    @property
    def is_full(self) -> bool:
        """Whether the stages should process the backlog now, to free memory."""
        return sum(hidden.nbytes for hidden, _, _ in self._kept) >= MAX_BYTES

    def keep(self, main_hidden: Tensor, positions: Tensor, slots: Tensor) -> None:
        """Store a pass.  Shapes: main_hidden [M, taps * d] bf16, positions, slots [M] i64."""
        self._kept.append((main_hidden.clone(), positions, slots))
        self._num_kept += 1

    def forget(self, slots: Tensor) -> None:
        """Drop the backlog of ``slots`` [R] i64, for which the stages have seen newer tokens."""
        if self._kept:
            self._since[slots] = self._num_kept

    def take(self) -> tuple[Tensor, Tensor, Tensor] | None:
        """Remove and return all valid tokens of the backlog, in the order of the passes."""
        if not self._kept:
            return None
        hidden, positions, slots = map(torch.cat, zip(*self._kept, strict=True))
        first = self._num_kept - len(self._kept)
        counts = torch.tensor([len(entry[1]) for entry in self._kept], device=slots.device)
        passes = first + torch.arange(len(counts), device=slots.device).repeat_interleave(counts)
        self._kept.clear()
        counting = (passes >= self._since[slots]).nonzero()[:, 0]
        return hidden[counting], positions[counting], slots[counting]
