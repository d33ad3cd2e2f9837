"""What lies where in the memory that ranks of one host open to each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeLayout:
    """R ranks, C tokens of capacity per rank, K choices per token, d width (a multiple of 128).

    Each rank has one buffer of this layout, which all ranks write:

    arrivals  [R, C, row_bytes]      tokens from each rank: E4M3 values, E8M0 scales of ``block``
                                     numbers each, padded to 4 bytes, (i32 place, f32 weight) of
                                     each choice, padded to 16
    results   [C, S, d] bf16         what comes back for this rank's tokens
    sent      [R, PROGRAMS] i32      the round in which each program of a rank last sent all of its
                                     tokens, at most 128 programs
    returned  [P, R, PROGRAMS] i32   the same of each part of a rank's results, some columns of all

    S is K in the exact form (one row per choice), R in the reduced one (one row per rank).
    """

    WIDTH_MULTIPLE: ClassVar[int] = 128  # whole blocks
    PROGRAMS: ClassVar[int] = 128  # that a launch has at most: a flag for each thread that waits
    MOST_PARTS: ClassVar[int] = 2

    num_ranks: int
    capacity: int
    num_choices: int
    hidden_size: int
    is_exact: bool
    block: int

    @property
    def num_slots(self) -> int:
        return self.num_choices if self.is_exact else self.num_ranks

    @property
    def row_bytes(self) -> int:
        scales = self.hidden_size // self.block
        used = self.hidden_size + -(-scales // 4) * 4 + 8 * self.num_choices
        return -(-used // 16) * 16

    def results_of(self, own: Tensor) -> Tensor:
        """[C S, d] bf16 in this rank's buffer ``own``."""
        return own[self.results : self.sent].view(torch.bfloat16).view(-1, self.hidden_size)

    @property
    def results(self) -> int:
        """Where results begin; arrivals begin at 0."""
        return self.num_ranks * self.capacity * self.row_bytes

    @property
    def sent(self) -> int:
        return self.results + 2 * self.capacity * self.num_slots * self.hidden_size

    @property
    def returned(self) -> int:
        return self.sent + 4 * self.num_ranks * self.PROGRAMS

    @property
    def num_bytes(self) -> int:
        return self.returned + 4 * self.MOST_PARTS * self.num_ranks * self.PROGRAMS
