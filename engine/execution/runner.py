"""The protocols of model and cache that workers use; ``Model`` and ``KVCache`` implement them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import Tensor

from deepinfer.engine.model.config import ModelConfig

from .batch import DraftOutput, ForwardBatch, ForwardOutput


class Cache(Protocol):
    """Packed state of one device."""

    @property
    def num_slots(self) -> int:
        """Slots for the rings of requests, and spare ones."""
        ...

    def snapshot(self, slot: int) -> object:
        """A copy of one slot's rings."""
        ...

    def restore(self, slot: int, snapshot: Any) -> None:
        """Overwrite a slot's rings with a snapshot."""
        ...


class Runner(Protocol):
    """A model with its weights; ``cache`` is read and written.

    The draft methods are called only if the model has draft stages and speculation is on.
    """

    @property
    def config(self) -> ModelConfig: ...

    def forward(self, batch: ForwardBatch, cache: Any) -> ForwardOutput: ...

    def seed_draft(
        self,
        main_hidden: Tensor,
        positions: Tensor,
        state_slots: Tensor,
        query_lens: Sequence[int],
        cache: Any,
    ) -> None: ...

    def draft(
        self,
        anchor_token_ids: Tensor,
        positions: Tensor,
        state_slots: Tensor,
        draft_start: Tensor,
        cache: Any,
        sample: Callable[[Tensor, Tensor], Tensor],
        depth: int,
        keeps_logits: bool,
    ) -> DraftOutput: ...
