"""Handing a prefilled request over to the worker that decodes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from deepinfer.engine.scheduling.request_state import RequestState

if TYPE_CHECKING:
    from deepinfer.engine.execution.prefill import PrefillResult
    from deepinfer.engine.scheduling.schedule import PrefillBatch


class KVTransfer(Protocol):
    """Moves a request's packed state from where it was prefilled to where it is decoded."""

    def arrived(self, transferring: Sequence[RequestState]) -> list[RequestState]:
        """Those of the transferring requests that can be decoded: all their state is here."""
        ...

    def lost(self) -> list[RequestState]:
        """Requests whose state will never arrive; they have to be prefilled again."""
        ...

    def ended(self) -> list[RequestState]:
        """Requests that arrived since the last call and ended with their first token."""
        ...


class RemotePrefill(KVTransfer, Protocol):
    """Prefill on other ranks, and the way of its results to this one."""

    def run(self, batch: PrefillBatch) -> PrefillResult: ...


class LocalTransfer:
    """Both workers use one pool: block table and slot stay what they are, nothing is copied."""

    def arrived(self, transferring: Sequence[RequestState]) -> list[RequestState]:
        return list(transferring)

    def lost(self) -> list[RequestState]:
        return []

    def ended(self) -> list[RequestState]:
        return []
