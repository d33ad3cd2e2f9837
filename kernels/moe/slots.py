"""Where each pair of token and choice stands among those of its expert."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Slots:
    """slot [T, K] i32: a number of its own for each pair of an expert, from 0 on; total [E] i32:
    pairs of each expert.

    Slots are taken by whoever comes first, so each run may number pairs otherwise.  What experts
    compute of a row depends neither on its place nor on its neighbours, and rows are added by pair:
    results have the same bits.
    """

    slot: Tensor
    total: Tensor

    @property
    def preset(self) -> tuple[Tensor, int]:
        """What must be set before, and to which value."""
        return self.total, 0

    @staticmethod
    def empty(tokens: int, choices: int, num_experts: int, device: torch.device) -> Slots:
        """For ``route`` to fill."""
        return Slots(
            torch.empty(tokens, choices, dtype=torch.int32, device=device),
            torch.empty(num_experts, dtype=torch.int32, device=device),
        )
