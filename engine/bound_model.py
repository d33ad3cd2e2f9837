"""A model together with the cache it reads and writes, as both workers use it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .batch import DraftOutput, ForwardBatch
from .request_state import RequestState
from .runner import Cache, Runner


class BoundModel:
    """``is_speculative``: keep the draft stages' rings up to date with every forward pass."""

    def __init__(
        self, model: Runner, cache: Cache, *, device: str, is_speculative: bool = False
    ) -> None:
        self.model = model
        self.device = device
        self.cache = cache
        self.is_speculative = is_speculative

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Logits [N, V] f32 of ``batch.logit_rows``; the batch's state is in the cache.

        Rows that rejected drafts leave in the draft rings are harmless: no draft looks beyond the
        verified tokens, and their positions are written again when they are run again.
        """
        output = self.model.forward(batch, self.cache)
        if self.is_speculative and len(output.main_rows):
            positions = batch.positions[output.main_rows]
            slots = batch.state_slots[batch.request_rows[output.main_rows]]
            lens = batch.decoder_lens
            self.model.seed_draft(output.main_hidden, positions, slots, lens, self.cache)
        return output.logits

    def draft(
        self, states: Sequence[RequestState], sample: Callable[[Tensor, Tensor, Tensor], Tensor]
    ) -> DraftOutput:
        """Drafts after each request's newest token.  ``sample`` maps logits [R, V] f32, slots [R]
        and the positions [R] of the drawn tokens to ids [R], -1 where there is no usable logit."""

        rows = [(s.token_ids[-1], s.num_computed_tokens, s.slot, s.decoder_start) for s in states]
        anchors, positions, slots, starts = torch.tensor(rows, device=self.device).T.contiguous()
        return self.model.draft(
            anchors,
            positions,
            slots,
            starts,
            self.cache,
            lambda logits, positions: sample(logits, slots, positions).clamp(min=0),
        )
