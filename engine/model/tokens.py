"""The tokens of a pass, and everything that is derived from their positions.

Made once per pass, twice if the decoder layers compute fewer tokens; shared by the layers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from deepinfer.engine.execution.batch import ForwardBatch, RingSave, last_tokens
from deepinfer.engine.execution.staging import send

from .ring_writes import ring_writes
from .rotary import RopeTables, Rotary
from .window import Window


@dataclass(frozen=True, kw_only=True, eq=False)
class Tokens:
    """T tokens of R requests.

    positions, request_rows, places [T] i64 as in ``ForwardBatch``; offsets [T] i64: index of a
    token among those of its request in this pass; slots [T] i64; query_lens: R ints; is_image
    [T, 1] bool, or None if there are no images; ring_saves and piece_keys as in ``ForwardBatch``.
    """

    positions: Tensor
    request_rows: Tensor
    places: Tensor
    offsets: Tensor
    slots: Tensor
    query_lens: tuple[int, ...]
    rope: RopeTables
    window: Window
    is_image: Tensor | None = None
    ring_saves: tuple[RingSave, ...] = ()
    piece_keys: int | None = None

    def num_visible(self, ratio: int) -> Tensor:
        """[T] i64: compressed entries that each token may see; computed once per ratio."""
        if ratio not in self._num_visible:
            entries = (self.positions + 1).div(ratio, rounding_mode="floor")
            self._num_visible[ratio] = entries
        return self._num_visible[ratio]

    @cached_property
    def _num_visible(self) -> dict[int, Tensor]:
        return {}

    def starting_at(self, window: Window) -> Tokens:
        """These tokens with another window."""
        return replace(self, window=window)

    def first_of_each(self, size: int, count: int) -> tuple[Tokens, Tensor]:
        """For requests with ``size`` tokens each: only the first ``count`` of each, and their
        indices.  They read and write the same window rows as before."""
        places = torch.arange(len(self.positions), device=self.positions.device)
        kept = places.view(-1, size)[:, :count].flatten()
        window = replace(
            self.window,
            read_index=self.window.read_index[kept],
            write_index=self.window.write_index[kept],
        )
        tokens = replace(
            self,
            positions=self.positions[kept],
            request_rows=self.request_rows[kept],
            places=places[: len(kept)],
            offsets=self.offsets[kept],
            slots=self.slots[kept],
            query_lens=(count,) * len(self.query_lens),
            rope={key: (cos[kept], sin[kept]) for key, (cos, sin) in self.rope.items()},
            window=window,
        )
        return tokens, kept

    def store_newest(self, ring: Tensor, values: Tensor) -> None:
        """Store values [T, ...] of each request's last tokens in ``ring`` [slots, size, ...]."""
        size = ring.shape[1]
        kept, slots = ring_writes(self.slots, self.query_lens, self.ring_saves, size)
        places = self.positions % size
        if kept is not None:
            places, values = places[kept], values[kept]
        ring[slots, places] = values

    @classmethod
    def of_batch(
        cls,
        batch: ForwardBatch,
        window: Window,
        rotary: Rotary,
        *,
        image_token_id: int | None,
    ) -> Tokens:
        """All tokens of a batch."""
        is_image = None
        if batch.may_have_images and image_token_id is not None:
            is_image = (batch.token_ids == image_token_id)[:, None]
        return cls(
            positions=batch.positions,
            request_rows=batch.request_rows,
            places=batch.places,
            offsets=batch.positions - batch.first[batch.request_rows],
            slots=batch.state_slots[batch.request_rows],
            query_lens=batch.query_lens,
            rope=rotary.tables(batch.positions),
            window=window,
            is_image=is_image,
            ring_saves=batch.ring_saves,
            piece_keys=batch.piece_keys,
        )


def narrow_batch(batch: ForwardBatch) -> tuple[ForwardBatch, Tensor | None]:
    """Reduce a batch to the tokens that the decoder layers run on.

    Returns the smaller batch and the kept tokens' indices, or the batch itself and None if all are
    kept.  ``logit_rows`` of the smaller batch are indices into it.  It has no ``ring_saves``: they
    end before ``decoder_start``.
    """
    if batch.decoder_lens == batch.query_lens:
        return batch, None
    kept = send(last_tokens(batch.query_lens, batch.decoder_lens), batch.positions.device)
    narrowed = replace(
        batch,
        token_ids=batch.token_ids[kept],
        positions=batch.positions[kept],
        request_rows=batch.request_rows[kept],
        places=torch.arange(len(kept), device=kept.device),
        query_lens=batch.decoder_lens,
        first=torch.maximum(batch.first, batch.decoder_start),
        logit_rows=torch.searchsorted(kept, batch.logit_rows),
        ring_saves=(),
    )
    return narrowed, kept
