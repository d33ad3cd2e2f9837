"""Per-slot data that every forward pass needs: block tables and start positions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deepinfer.engine.scheduling.request_state import RequestState

from .batch import ForwardBatch, RingSave
from .staging import send

_LEAST_CONTEXT = 512


class SlotTable:
    """Block tables and start positions by slot; turns requests into a ``ForwardBatch``.

    blocks [num_slots, max blocks] i64 is on the device: a step sends only new blocks.
    """

    def __init__(
        self,
        num_slots: int,
        max_model_len: int,
        block_size: int,
        device: str,
        image_token_id: int | None = None,
    ) -> None:
        self.device = device
        self.block_size = block_size
        self.image_token_id = image_token_id
        max_blocks = -(-max_model_len // block_size)
        self.blocks = torch.zeros((num_slots, max_blocks), dtype=torch.int64, device=device)
        self._num_blocks = [0] * num_slots
        self._starts = np.zeros((3, num_slots), dtype=np.int64)

    def assign(self, state: RequestState) -> None:
        """Set up the slot of a request that has just been assigned to it."""
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
        ring_saves: Sequence[RingSave] = (),
    ) -> ForwardBatch:
        """The batch of ``query_lens[i]`` tokens from position ``starts[i]`` for request i."""
        self.send_new_blocks(states)
        slots = np.asarray([state.slot for state in states], dtype=np.int64)
        longest = max(start + n for start, n in zip(starts, query_lens, strict=True))
        encoder_start, decoder_start, write_start = self.starts(slots)
        return ForwardBatch.of(
            token_ids=token_ids,
            query_lens=query_lens,
            first=starts,
            block_table=self._block_table(slots, -(-longest // self.block_size)),
            state_slots=slots,
            encoder_start=encoder_start,
            decoder_start=decoder_start,
            write_start=write_start,
            logit_rows=logit_rows,
            ring_saves=ring_saves,
            device=self.device,
            image_token_id=self.image_token_id,
        )

    def starts(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """``encoder_start``, ``decoder_start`` and ``write_start`` of n slots, [3, n]."""
        return self._starts[:, slots]

    def context_bound(self, length: int) -> int:
        """The next power of two above a context length, at most the capacity of a slot."""
        most = self.blocks.shape[1] * self.block_size
        return min(most, max(_LEAST_CONTEXT, 1 << (length - 1).bit_length()))

    def send_new_blocks(self, states: Sequence[RequestState]) -> None:
        """Send blocks that were added since; a request's blocks only grow while it has a slot."""
        places: list[int] = []
        blocks: list[int] = []
        for state in states:
            known = self._num_blocks[state.slot]
            if known != len(state.blocks):
                begin = state.slot * self.blocks.shape[1]
                places += range(begin + known, begin + len(state.blocks))
                blocks += state.blocks[known:]
                self._num_blocks[state.slot] = len(state.blocks)
        if places:
            index, values = send(np.array([places, blocks]), self.device)
            self.blocks.view(-1)[index] = values

    def _block_table(self, slots: NDArray[np.int64], width: int) -> Tensor:
        return self.blocks[:, :width][send(slots, self.device)]
