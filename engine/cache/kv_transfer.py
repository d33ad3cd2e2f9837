"""Hand-over of a prefilled request to the worker that decodes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from deepinfer.engine.scheduling.request_state import RequestState

if TYPE_CHECKING:
    from deepinfer.engine.execution.prefill import PrefillResult
    from deepinfer.engine.scheduling.schedule import PrefillBatch


class KVTransfer(Protocol):
    """Moves a request's cache from where it was prefilled to where it is decoded."""

    def arrived(self, transferring: Sequence[RequestState]) -> list[RequestState]:
        """The transferring requests whose state has arrived completely: they can be decoded."""
        ...

    def lost(self) -> list[RequestState]:
        """Requests whose state will never arrive and that must be prefilled again."""
        ...

    def ended(self) -> list[RequestState]:
        """Requests that have arrived since the last call and ended with their first token."""
        ...


class RemotePrefill(KVTransfer, Protocol):
    """Prefill on other ranks, and the transfer of its results to this one."""

    def run(self, batch: PrefillBatch) -> PrefillResult: ...


class LocalTransfer:
    """Both workers share one pool: block table and slot stay the same, nothing is copied."""

    def arrived(self, transferring: Sequence[RequestState]) -> list[RequestState]:
        return list(transferring)

    def lost(self) -> list[RequestState]:
        return []

    def ended(self) -> list[RequestState]:
        return []
