"""Per-slot rows of what every forward pass needs again, kept from step to step as arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .batch import ForwardBatch
from .request_state import RequestState


class SlotTable:
    """Block tables and start positions by slot; turns requests into a ``ForwardBatch``."""

    def __init__(self, num_slots: int, max_model_len: int, block_size: int, device: str) -> None:
        self.device = device
        self.block_size = block_size
        max_blocks = -(-max_model_len // block_size)
        self._blocks = np.zeros((num_slots, max_blocks), dtype=np.int32)
        self._num_blocks = [0] * num_slots
        self._starts = np.zeros((3, num_slots), dtype=np.int64)

    def assign(self, state: RequestState) -> None:
        """Take over a request that has just got its slot."""
        self._num_blocks[state.slot] = 0
        starts = (state.encoder_start, state.decoder_start, state.write_start)
        self._starts[:, state.slot] = starts

    def batch(
        self,
        states: Sequence[RequestState],
        starts: Sequence[int],
        token_ids: Sequence[int] | NDArray[np.int64],
        query_lens: Sequence[int],
        logit_rows: NDArray[np.int64],
    ) -> ForwardBatch:
        """The batch in which request i brings ``query_lens[i]`` tokens from ``starts[i]`` on."""
        slots = [state.slot for state in states]
        self._sync(states)
        lens = np.asarray(query_lens, dtype=np.int64)
        begins = np.asarray(starts, dtype=np.int64)
        ends = begins + lens
        rows = np.repeat(np.arange(len(states)), lens)
        offsets = np.arange(len(rows)) - np.repeat(np.cumsum(lens) - lens, lens)
        width = -(-int(ends.max()) // self.block_size)
        encoder_start, decoder_start, write_start = self._starts[:, slots]
        return ForwardBatch(
            token_ids=self._tensor(np.asarray(token_ids, dtype=np.int64)),
            positions=self._tensor(begins[rows] + offsets),
            request_rows=self._tensor(rows),
            query_lens=tuple(query_lens),
            context_lens=tuple(ends.tolist()),
            block_table=self._tensor(self._blocks[slots, :width]),
            state_slots=self._tensor(np.asarray(slots, dtype=np.int64)),
            encoder_start=self._tensor(encoder_start),
            decoder_start=self._tensor(decoder_start),
            write_start=self._tensor(write_start),
            logit_rows=self._tensor(logit_rows),
        )

    def _sync(self, states: Sequence[RequestState]) -> None:
        """Blocks are only ever appended while a request keeps its slot."""
        for state in states:
            known = self._num_blocks[state.slot]
            if known != len(state.blocks):
                self._blocks[state.slot, known : len(state.blocks)] = state.blocks[known:]
                self._num_blocks[state.slot] = len(state.blocks)

    def _tensor(self, array: NDArray[np.int64] | NDArray[np.int32]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)
