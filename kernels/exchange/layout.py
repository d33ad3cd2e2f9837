"""Layout of the buffers that the ranks of one host open to each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from deepinfer.errors import TensorError


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeLayout:
    """R ranks, capacity of C tokens per rank, top K experts per token, d width (a multiple of 128).

    Each rank has one buffer of this layout, to which all ranks write:

    values    [R, C, d] u8     E4M3 values of the tokens of each rank; its own are not copied
    heads     [R, C, head_bytes] u8   header of each token: one E8M0 scale per ``block`` values,
                               padded to 4 bytes, then K i32 owners and K f32 weights, padded to 16
    results   [C, K, d] bf16   results of each expert for this rank's tokens
    sent      [R] i32          last round of which all tokens of each rank have arrived
    returned  [R] i32          last round of which each rank has returned all results

    An owner is the rank of the expert (upper 16 bits) and its index there (lower 16); -1: none.
    """

    WIDTH_MULTIPLE: ClassVar[int] = 128  # whole blocks

    num_ranks: int
    capacity: int
    num_choices: int
    hidden_size: int
    block: int

    def check_room(self, num_tokens: int, most_tokens: int) -> None:
        """This rank sends ``num_tokens``, no rank more than ``most_tokens``.  Raises: TensorError
        if that exceeds the capacity: they would overwrite those of another rank."""
        if not num_tokens <= most_tokens <= self.capacity:
            raise TensorError(
                f"tokens: expected at most {most_tokens} per rank with a capacity of "
                f"{self.capacity}, found {num_tokens}"
            )

    @property
    def head_bytes(self) -> int:
        scales = self.hidden_size // self.block
        return _aligned(-(-scales // 4) * 4 + 8 * self.num_choices)

    @property
    def heads(self) -> int:
        """Byte offset of heads; values start at 0."""
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
    """Rounded up to a multiple of 16."""
    return -(-num_bytes // 16) * 16
