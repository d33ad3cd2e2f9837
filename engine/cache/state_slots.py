"""State slots: one per running request, for its rings (window, partial groups, history)."""

from __future__ import annotations

from collections.abc import Iterable

from deepinfer.errors import EngineError


class StateSlots:
    """Allocator of ``num_slots`` slots; the lowest free one first."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._free = list(range(num_slots - 1, -1, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def allocate(self) -> int:
        """A slot for one request.  Raises: EngineError if none is free."""
        if not self._free:
            raise EngineError("no free state slot: check num_free first")
        return self._free.pop()

    def release(self, slot: int) -> None:
        self._free.append(slot)
        self._free.sort(reverse=True)

    def check_integrity(self, held: Iterable[int]) -> None:
        """Raise EngineError unless every slot is either free or held by exactly one request."""
        if sorted([*self._free, *held]) != list(range(self.num_slots)):
            raise EngineError("a state slot leaked, or is both free and held, or is held twice")
