"""A rank's exchange buffer and its views of the buffers of the other ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from .layout import ExchangeLayout


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Buffers:
    """own [num_bytes] u8 of ``rank``, with the given ``layout``.

    peers    buffers of the other ranks, as targets of copies
    homes    [R] i64: addresses of the results of all ranks, for kernels
    rounds   [1] i32: number of exchanges that this rank has finished
    """

    layout: ExchangeLayout
    rank: int
    own: Tensor
    peers: Mapping[int, Tensor]
    homes: Tensor
    rounds: Tensor

    def values_of(self, rank: int) -> slice:
        """Byte range of the values of tokens from ``rank``."""
        size = self.layout.capacity * self.layout.hidden_size
        return slice(rank * size, (rank + 1) * size)

    def heads_of(self, rank: int) -> slice:
        size = self.layout.capacity * self.layout.head_bytes
        start = self.layout.heads + rank * size
        return slice(start, start + size)

    def sent_by(self, rank: int) -> slice:
        return slice(self.layout.sent + 4 * rank, self.layout.sent + 4 * rank + 4)

    @property
    def results(self) -> Tensor:
        """[C K, d] bf16: results of each expert for this rank's tokens."""
        found = self.own[self.layout.results : self.layout.sent].view(torch.bfloat16)
        return found.view(-1, self.layout.hidden_size)

    @property
    def sent(self) -> Tensor:
        """[R] i32."""
        return self._flags(self.layout.sent)

    @property
    def returned(self) -> Tensor:
        """[R] i32."""
        return self._flags(self.layout.returned)

    def _flags(self, start: int) -> Tensor:
        return self.own[start : start + 4 * self.layout.num_ranks].view(torch.int32)
