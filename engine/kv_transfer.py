"""Handing a prefilled request over to the worker that decodes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from .request_state import RequestState


class KVTransfer(Protocol):
    """Moves a request's packed state from where it was prefilled to where it is decoded."""

    def arrived(self, transferring: Sequence[RequestState]) -> list[RequestState]:
        """Those of the transferring requests whose state is complete at the decoding side."""
        ...


class LocalTransfer:
    """Both workers use one pool: block table and slot stay what they are, nothing is copied."""

    def arrived(self, transferring: Sequence[RequestState]) -> list[RequestState]:
        return list(transferring)
