"""Which tokens of a pass leave their state in the rings, and in which slots."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from deepinfer.engine.execution.batch import RingSave, last_tokens
from deepinfer.engine.execution.staging import send


def ring_writes(
    slots: Tensor, query_lens: Sequence[int], saves: Sequence[RingSave], ring_size: int
) -> tuple[Tensor | None, Tensor]:
    """Indices of the tokens to store, [n] i64 (None: all T tokens, in order), and their slots,
    [n] i64: each request's last ``ring_size`` tokens in its own slot, and those of ``saves``.

    Shapes: slots [T] i64, each token's own; query_lens R ints: tokens per request.
    """
    if not saves and max(query_lens, default=0) <= ring_size:
        return None, slots
    own = last_tokens(query_lens, [ring_size] * len(query_lens))
    parts = [np.arange(max(save.begin, save.end - ring_size), save.end) for save in saves]
    tokens = np.concatenate([own, *parts])
    if not saves:
        index = send(tokens, slots.device)
        return index, slots[index]
    others = np.repeat([save.slot for save in saves], [len(part) for part in parts])
    others = np.concatenate([np.full(len(own), -1), others])
    index, other_slots = send(np.stack([tokens, others]), slots.device)
    return index, torch.where(other_slots < 0, slots[index], other_slots)
