"""The tokens that a run of layers computes, and all that follows from their positions.

Made once per pass, twice when the decoder half computes fewer tokens; shared by its layers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from deepinfer.engine.batch import ForwardBatch

from .rotary import RopeTables, Rotary
from .window import Window, causal_window


@dataclass(frozen=True, kw_only=True, eq=False)
class Tokens:
    """T tokens of R requests.

    positions, request_rows [T] i64; offsets [T] i64: number of a token in its request's part of
    this pass; slots [T] i64; query_lens: R ints; is_image [T, 1] bool, or None if there is none.
    """

    positions: Tensor
    request_rows: Tensor
    offsets: Tensor
    slots: Tensor
    query_lens: tuple[int, ...]
    rope: RopeTables
    window: Window
    is_image: Tensor | None = None

    def newest(self, count: int) -> Tensor:
        """Indices of each request's last ``count`` tokens of this pass."""
        if max(self.query_lens, default=0) <= count:
            return torch.arange(len(self.positions), device=self.positions.device)
        lens = torch.tensor(self.query_lens, device=self.positions.device)
        return (self.offsets >= lens[self.request_rows] - count).nonzero()[:, 0]

    @classmethod
    def of_batch(
        cls,
        batch: ForwardBatch,
        start: Tensor,
        rotary: Rotary,
        *,
        width: int,
        ring_size: int,
        image_token_id: int | None,
    ) -> Tokens:
        """All tokens of a batch; their windows begin at ``start`` [R]."""
        device = batch.positions.device
        ends, lens = batch.context_lens, batch.query_lens
        first = torch.tensor([e - n for e, n in zip(ends, lens, strict=True)], device=device)
        window = causal_window(
            positions=batch.positions,
            request_rows=batch.request_rows,
            first=first,
            start=start,
            slots=batch.state_slots,
            max_query_len=max(lens, default=0),
            width=width,
            ring_size=ring_size,
        )
        is_image = batch.token_ids == (-1 if image_token_id is None else image_token_id)
        return cls(
            positions=batch.positions,
            request_rows=batch.request_rows,
            offsets=batch.positions - first[batch.request_rows],
            slots=batch.state_slots[batch.request_rows],
            query_lens=lens,
            rope=rotary.tables(batch.positions),
            window=window,
            is_image=is_image[:, None] if bool(is_image.any()) else None,
        )


def narrow_batch(batch: ForwardBatch, start: Tensor) -> tuple[ForwardBatch, Tensor | None]:
    """The tokens at or after ``start`` [R] of their request.

    Returns the smaller batch and the kept tokens' indices, or the batch itself and None if all
    stay.  ``logit_rows`` of the smaller batch point into it.
    Raises: ValueError if a token that is left out has logits asked for.
    """
    keep = batch.positions >= start[batch.request_rows]
    if bool(keep.all()):
        return batch, None
    kept = keep.nonzero()[:, 0]
    if not bool(keep[batch.logit_rows].all()):
        raise ValueError("logits are asked for a token before its request's decoder_start")
    rows = batch.request_rows[kept]
    narrowed = replace(
        batch,
        token_ids=batch.token_ids[kept],
        positions=batch.positions[kept],
        request_rows=rows,
        query_lens=tuple(torch.bincount(rows, minlength=len(batch.query_lens)).tolist()),
        logit_rows=torch.searchsorted(kept, batch.logit_rows),
    )
    return narrowed, kept
