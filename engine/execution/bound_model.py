"""A model together with the cache that it reads and writes, as both workers use it."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from deepinfer.engine.speculation.draft_backlog import DraftBacklog

from .batch import DraftOutput, ForwardBatch, ForwardOutput
from .replay_graphs import HasHalves, ReplayGraphs
from .runner import Cache, Runner


class BoundModel:
    """``backlog``: tokens that the draft stages have not seen yet; None without drafting."""

    def __init__(self, model: Runner, cache: Cache, *, backlog: DraftBacklog | None = None) -> None:
        self.model = model
        self.cache = cache
        self.backlog = backlog

    def forward(self, batch: ForwardBatch, *, is_plain: bool = False) -> ForwardOutput:
        """One forward pass; ``note`` or ``note_plain`` must follow.  Device work only.

        ``is_plain``: a decode step without drafts.  The draft stages see its tokens only if
        drafting resumes.  Rows of rejected drafts in the draft rings are harmless: no draft looks
        beyond the verified tokens, and their positions are overwritten when they are run again.
        """
        output = self.model.forward(batch, self.cache)
        if not is_plain:
            self._seed(batch, output)
        return output

    def prefill(self, batch: ForwardBatch, graphs: ReplayGraphs) -> ForwardOutput:
        """``forward`` of prompts; the decoder layers use ``graphs`` if the model allows it."""
        if graphs.is_enabled and isinstance(self.model, HasHalves):
            output = graphs.forward(self.model, batch, self.cache)
        else:
            output = self.model.forward(batch, self.cache)
        self._seed(batch, output)
        return output

    def _seed(self, batch: ForwardBatch, output: ForwardOutput) -> None:
        """Feed the draft stages the tokens of a pass that went through the decoder layers."""
        if self.backlog is not None and len(output.main_rows):
            positions = batch.positions[output.main_rows]
            slots = batch.state_slots[batch.request_rows[output.main_rows]]
            lens = batch.decoder_lens
            self.model.seed_draft(output.main_hidden, positions, slots, lens, self.cache)

    def note(self, slots: Tensor) -> None:
        """Record that the draft stages have seen a pass of these slots [R] i64."""
        if self.backlog is not None:
            self.backlog.forget(slots)

    def note_plain(self, main_hidden: Tensor, positions: Tensor, slots: Tensor) -> None:
        """Record tokens that the draft stages have not seen; shapes as in ``DraftBacklog``."""
        if self.backlog is not None:
            self.backlog.keep(main_hidden, positions, slots)
            if self.backlog.is_full:
                self.catch_up()

    def catch_up(self) -> None:
        """Feed the draft stages the tokens they have missed; must precede ``draft``."""
        missed = None if self.backlog is None else self.backlog.take()
        if missed is not None:
            hidden, positions, slots = missed
            ones = (1,) * len(positions)  # at most a window of each request, all of which is needed
            self.model.seed_draft(hidden, positions, slots, ones, self.cache)

    def draft(
        self,
        anchors: Tensor,
        positions: Tensor,
        slots: Tensor,
        starts: Tensor,
        sample: Callable[[Tensor, Tensor, Tensor], Tensor],
        depth: int,
        keeps_logits: bool,
    ) -> DraftOutput:
        """``depth`` drafts after each anchor; all [R] i64 as in ``Model.draft``.  ``sample`` maps
        logits [R, V] f32, slots [R] and the positions [R] of the sampled tokens to ids [R], -1 for
        rows without a usable logit."""
        return self.model.draft(
            anchors,
            positions,
            slots,
            starts,
            self.cache,
            lambda logits, positions: sample(logits, slots, positions).clamp(min=0),
            depth,
            keeps_logits,
        )
