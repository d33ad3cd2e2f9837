"""Outputs of the experts of each token before the sum, which the next kernel fuses."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class PairOutputs:
    """The result for T tokens of K experts each, on a GPU, is ``added`` [T, d] bf16 plus the rows
    [R, d] bf16 with the indices ``row`` [T K] i32 (-1: none), in this order, in fp32, rounded once.
    """

    rows: Tensor
    row: Tensor
    added: Tensor

    @property
    def per_token(self) -> int:
        """K."""
        return len(self.row) // max(1, len(self.added))
