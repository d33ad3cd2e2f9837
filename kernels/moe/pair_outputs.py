"""What the experts of each token gave, not added up yet: whoever reads it next does that."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class PairOutputs:
    """T tokens of K choices each, on a GPU: ``added`` [T, d] bf16 plus, in the order of choices,
    the rows [R, d] bf16 that ``row`` [T K] i32 names (-1: none), in fp32 and rounded once."""

    rows: Tensor
    row: Tensor
    added: Tensor

    @property
    def per_token(self) -> int:
        """K."""
        return len(self.row) // max(1, len(self.added))
