"""The position of each (token, expert) pair among those of its expert."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Slots:
    """slot [T, K] i32: numbers the pairs of each expert from 0 on; total [E] i32: pairs per expert.

    Slots are assigned by atomic adds, so their order may differ from run to run.  The GEMMs of a
    row depend neither on its position nor on its neighbors, and rows are summed by pair: results
    have the same bits.
    """

    slot: Tensor
    total: Tensor

    @property
    def preset(self) -> tuple[Tensor, int]:
        """The buffer that must be initialized before ``route``, and the value."""
        return self.total, 0

    @staticmethod
    def empty(tokens: int, choices: int, num_experts: int, device: torch.device) -> Slots:
        """Uninitialized, for ``route`` to fill."""
        return Slots(
            torch.empty(tokens, choices, dtype=torch.int32, device=device),
            torch.empty(num_experts, dtype=torch.int32, device=device),
        )
