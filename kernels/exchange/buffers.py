"""Where a rank's buffer of an exchange is, and where those of the others are, seen from there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from .layout import ExchangeLayout


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Buffers:
    """own [num_bytes] u8 of ``rank``, laid out as ``layout`` says.

    peers    those of the other ranks that are here, for copies from here
    homes    [R] i64: where the results of all ranks are, for kernels here
    rounds   [1] i32: how many exchanges have ended here
    """

    layout: ExchangeLayout
    rank: int
    own: Tensor
    peers: Mapping[int, Tensor]
    homes: Tensor
    rounds: Tensor

    def values_of(self, rank: int) -> slice:
        """Bytes of a buffer: values of the tokens that came from ``rank``."""
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
        """[C K, d] bf16: what comes back for each choice of this rank's tokens."""
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
