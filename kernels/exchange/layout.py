"""What lies where in the memory that ranks of one host open to each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeLayout:
    """R ranks, C tokens of capacity per rank, K choices per token, d width (a multiple of 128).

    Each rank has one buffer of this layout, which all ranks write:

    arrivals  [R, C, row_bytes]  tokens from each rank: E4M3 values, E8M0 scales, (i32 place, f32
                                 weight) of each choice, padded to 16 bytes
    arrived   [R, C] i32         the round in which such a row was last written
    results   [C, S, d] bf16     what comes back for this rank's tokens
    returned  [C, S] i32         the round in which such a row was last written

    S is K in the exact form (one row per choice), R in the reduced one (one row per rank).
    """

    WIDTH_MULTIPLE: ClassVar[int] = 128  # so that places and weights are at multiples of 4 bytes

    num_ranks: int
    capacity: int
    num_choices: int
    hidden_size: int
    is_exact: bool

    @property
    def num_slots(self) -> int:
        return self.num_choices if self.is_exact else self.num_ranks

    @property
    def row_bytes(self) -> int:
        used = self.hidden_size + self.hidden_size // 32 + 8 * self.num_choices
        return -(-used // 16) * 16

    @property
    def arrived(self) -> int:
        """Where the first flags begin; arrivals begin at 0."""
        return self.num_ranks * self.capacity * self.row_bytes

    @property
    def results(self) -> int:
        return self.arrived + -(-4 * self.num_ranks * self.capacity // 16) * 16

    @property
    def returned(self) -> int:
        return self.results + 2 * self.capacity * self.num_slots * self.hidden_size

    @property
    def num_bytes(self) -> int:
        return self.returned + 4 * self.capacity * self.num_slots
