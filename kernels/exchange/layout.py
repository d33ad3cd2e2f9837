"""What lies where in the memory that ranks of one host open to each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from deepinfer.errors import TensorError


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeLayout:
    """R ranks, C tokens of capacity per rank, K choices per token, d width (a multiple of 128).

    Each rank has one buffer of this layout, which all ranks write:

    values    [R, C, d] u8     E4M3 values of the tokens from each rank; its own stay where they are
    heads     [R, C, head_bytes] u8   the rest of each token: E8M0 scales of ``block`` numbers each,
                               padded to 4 bytes, (i32 owner, f32 weight) of each choice, padded
                               to 16
    results   [C, K, d] bf16   what comes back for each choice of this rank's tokens
    sent      [R] i32          the last round of which all tokens of each rank are here
    returned  [R] i32          the last round of which each rank has returned all results

    An owner is the rank of a choice in its upper half, the place there in the lower one; -1: none.
    """

    WIDTH_MULTIPLE: ClassVar[int] = 128  # whole blocks

    num_ranks: int
    capacity: int
    num_choices: int
    hidden_size: int
    block: int

    def check_room(self, num_tokens: int, most_tokens: int) -> None:
        """A rank brings ``num_tokens``, none more than ``most_tokens``.  Raises: TensorError if
        there is no room for so many: they would be written over those of another rank."""
        if not num_tokens <= most_tokens <= self.capacity:
            raise TensorError(
                f"tokens: expected at most {most_tokens} of each rank, which are at most "
                f"{self.capacity}, found {num_tokens}"
            )

    @property
    def head_bytes(self) -> int:
        scales = self.hidden_size // self.block
        return _aligned(-(-scales // 4) * 4 + 8 * self.num_choices)

    @property
    def heads(self) -> int:
        """Where heads begin; values begin at 0."""
        return self.num_ranks * self.capacity * self.hidden_size

    @property
    def results(self) -> int:
        return self.heads + self.num_ranks * self.capacity * self.head_bytes

    @property
    def sent(self) -> int:
        return self.results + 2 * self.capacity * self.num_choices * self.hidden_size

    @property
    def returned(self) -> int:
        return self.sent + _aligned(4 * self.num_ranks)

    @property
    def num_bytes(self) -> int:
        return self.returned + _aligned(4 * self.num_ranks)


def _aligned(num_bytes: int) -> int:
    """Up to a multiple of 16."""
    return -(-num_bytes // 16) * 16
