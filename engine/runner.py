"""What the workers need of a model and a cache.  ``model.Model`` and ``KVCache`` have it."""

from __future__ import annotations

from typing import Any, Protocol

from .batch import ForwardBatch, ForwardOutput
from .model.config import ModelConfig


class Cache(Protocol):
    """Packed state of one device."""

    def snapshot(self, slot: int) -> object:
        """A copy of the rings of one slot."""
        ...

    def restore(self, slot: int, snapshot: Any) -> None:
        """Put the rings of a snapshot into a slot."""
        ...


class Runner(Protocol):
    """A model bound to its weights; ``cache`` is the one it reads and writes."""

    config: ModelConfig

    def forward(self, batch: ForwardBatch, cache: Cache) -> ForwardOutput: ...
