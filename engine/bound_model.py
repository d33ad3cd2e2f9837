"""A model together with the cache it reads and writes, as both workers use it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .batch import DraftOutput, ForwardBatch
from .draft_backlog import DraftBacklog
from .request_state import RequestState
from .runner import Cache, Runner


class BoundModel:
    """``backlog``: what the draft stages have not seen yet; None for a model that never drafts."""

    def __init__(
        self, model: Runner, cache: Cache, *, device: str, backlog: DraftBacklog | None = None
    ) -> None:
        self.model = model
        self.device = device
        self.cache = cache
        self.backlog = backlog

    def forward(self, batch: ForwardBatch, *, is_plain: bool = False) -> Tensor:
        """Logits [N, V] f32 of ``batch.logit_rows``; the batch's state is in the cache.

        ``is_plain``: a decode step without drafts.  The draft stages see its tokens only if
        drafting comes back.  Rows that rejected drafts leave in the draft rings are harmless: no
        draft looks beyond the verified tokens, and their positions are written again when they are
        run again.
        """
        output = self.model.forward(batch, self.cache)
        if self.backlog is not None and len(output.main_rows):
            positions = batch.positions[output.main_rows]
            slots = batch.state_slots[batch.request_rows[output.main_rows]]
            if is_plain:
                self.backlog.keep(output.main_hidden, positions, slots)
                if self.backlog.is_full:
                    self._catch_up(self.backlog)
            else:
                self.backlog.forget(batch.state_slots)
                lens = batch.decoder_lens
                self.model.seed_draft(output.main_hidden, positions, slots, lens, self.cache)
        return output.logits

    def _catch_up(self, backlog: DraftBacklog) -> None:
        """Let the draft stages see what they have missed."""
        missed = backlog.take()
        if missed is not None:
            hidden, positions, slots = missed
            ones = (1,) * len(positions)  # at most a window of each request: all of it counts
            self.model.seed_draft(hidden, positions, slots, ones, self.cache)

    def draft(
        self, states: Sequence[RequestState], sample: Callable[[Tensor, Tensor, Tensor], Tensor]
    ) -> DraftOutput:
        """Drafts after each request's newest token.  ``sample`` maps logits [R, V] f32, slots [R]
        and the positions [R] of the drawn tokens to ids [R], -1 where there is no usable logit."""
        if self.backlog is not None:
            self._catch_up(self.backlog)
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
