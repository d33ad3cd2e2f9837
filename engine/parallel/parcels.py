"""Transfer of packed state from a prefill GPU to a decode GPU of the same host.

The sender writes into a staging buffer at the receiver and announces it in a message; the receiver
copies it into place and acknowledges that the space is free again.  Nothing goes through host
memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from deepinfer.kernels.exchange import copy_blocks

_ALIGNMENT = 16


@dataclass(frozen=True, slots=True)
class Rows:
    """M rows of a tensor: ``table`` [B, n] u8, contiguous; ``rows`` [M] i64."""

    table: Tensor
    rows: Tensor

    @property
    def num_bytes(self) -> int:
        return -(-len(self.rows) * self.table.shape[1] // _ALIGNMENT) * _ALIGNMENT


@dataclass(frozen=True, slots=True)
class Parcel:
    """A part of the staging buffer; ``number`` counts parcels from one sender to one receiver."""

    number: int
    start: int


@dataclass(frozen=True, slots=True)
class Taken:
    """The receiver's acknowledgment that a parcel was copied into place."""

    number: int


class Outbox:
    """A sender's view of one staging buffer of ``num_bytes`` at ``address``, maybe on a peer."""

    def __init__(self, address: int, num_bytes: int) -> None:
        self._address = address
        self._num_bytes = num_bytes
        self._under_way: deque[tuple[int, int, int]] = deque()  # number, start, end
        self._taken: set[int] = set()
        self._num_sent = 0

    def send(self, parts: Sequence[Rows]) -> Parcel | None:
        """Launch the copies; None if there is no room now.  The message that announces them must
        wait for the device."""
        start = self._room(sum(part.num_bytes for part in parts))
        if start is None:
            return None
        at = start
        for part in parts:
            in_order = torch.arange(len(part.rows), device=part.rows.device)
            copy_blocks(part.table, part.rows, self._address + at, in_order)
            at += part.num_bytes
        self._num_sent += 1
        self._under_way.append((self._num_sent, start, at))
        return Parcel(self._num_sent, start)

    def free(self, taken: Taken) -> None:
        """Free the space of a parcel that the receiver has acknowledged."""
        self._taken.add(taken.number)
        while self._under_way and self._under_way[0][0] in self._taken:
            self._taken.remove(self._under_way.popleft()[0])

    def _room(self, num_bytes: int) -> int | None:
        """The start of free space in the ring buffer; None if there is not enough."""
        if not self._under_way:
            return 0 if num_bytes <= self._num_bytes else None
        first, end = self._under_way[0][1], self._under_way[-1][2]
        if end > first:  # free: from the end on, and from 0 to the first
            if num_bytes <= self._num_bytes - end:
                return end
            return 0 if num_bytes < first else None
        return end if num_bytes < first - end else None


class Inbox:
    """A receiver's staging buffer ``area`` [num_bytes] u8."""

    def __init__(self, area: Tensor) -> None:
        self.area = area

    def take(self, parcel: Parcel, parts: Sequence[Rows]) -> None:
        """Launch the copies into ``parts``, which have the sizes of those that were sent."""
        at = parcel.start
        for part in parts:
            count, width = len(part.rows), part.table.shape[1]
            landed = self.area[at : at + count * width].view(count, width)
            in_order = torch.arange(count, device=part.rows.device)
            copy_blocks(landed, in_order, part.table.data_ptr(), part.rows)
            at += part.num_bytes
