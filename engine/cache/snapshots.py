"""Saved ring states at block boundaries, for exact prefix hits.  A bounded LRU cache."""

from __future__ import annotations

from collections import OrderedDict


class SnapshotStore:
    """At most ``capacity`` snapshots (opaque, made by the cache), by prefix digest."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._snapshots: OrderedDict[bytes, object] = OrderedDict()

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._snapshots

    def __len__(self) -> int:
        return len(self._snapshots)

    def get(self, digest: bytes) -> object:
        """The snapshot of a digest, which must be present; marks it as most recently used."""
        self._snapshots.move_to_end(digest)
        return self._snapshots[digest]

    def put(self, digest: bytes, snapshot: object) -> None:
        self._snapshots[digest] = snapshot
        self._snapshots.move_to_end(digest)
        while len(self._snapshots) > self.capacity:
            self._snapshots.popitem(last=False)

    def discard(self, digest: bytes) -> None:
        """Drop a snapshot whose block was evicted."""
        self._snapshots.pop(digest, None)
