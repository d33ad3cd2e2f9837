"""The tokens that one of N equally loaded ranks receives: how many, and for which of its experts.

E experts in all, K selected experts per token, H experts on this rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deepinfer.engine.parallel.expert_balance import plain_placement, rebalance

# The popularity of experts is exp(SPREAD * normal): the most popular of 384 has about 4.5 times the
# mean.  This is an assumption; EPLB in the engine uses measured loads.
SPREAD = 0.5


@dataclass(frozen=True)
class Traffic:
    """routing: see ``BenchPlan``.  ``num_held`` includes a redundant expert if there is one."""

    routing: str
    num_experts: int
    num_choices: int
    num_held: int
    ranks: int
    seed: int

    @cached_property
    def held_shares(self) -> NDArray[np.float64]:
        """[H] fraction of all choices for each expert on this rank."""
        even = np.full(self.num_held, 1 / self.ranks / self.num_held)
        if self.routing == "even" or self.ranks == 1:
            return even
        generator = np.random.default_rng(self.seed)
        loads = np.exp(SPREAD * generator.standard_normal((1, self.num_experts)))
        loads /= loads.sum()
        if self.routing == "skewed":
            placement = plain_placement(1, self.num_experts, self.ranks)
        else:
            held = self.num_held * self.ranks
            placement = rebalance(loads, num_replicas=held, num_devices=self.ranks)
        busiest = int(placement.device_loads(loads)[0].argmax())
        here = placement.device_of_replica == busiest
        experts = placement.physical_to_logical[0, here]
        each = loads[0, experts] / placement.num_replicas[0, experts]
        return np.pad(each, (0, self.num_held - len(each)))

    def num_received(self, num_tokens: int) -> int:
        """Tokens of all ranks with at least one expert on this rank."""
        share = float(self.held_shares.sum())
        missed = 1.0
        for choice in range(self.num_choices):
            # Without replacement: each choice leaves fewer experts on other ranks.
            missed *= max(0.0, 1 - share * self.num_experts / (self.num_experts - choice))
        return max(1, round(num_tokens * self.ranks * (1 - missed)))

    def choices(self, num_tokens: int) -> Tensor:
        """[received, K] i64 local experts, ascending, preceded by -1 for the others."""
        received = self.num_received(num_tokens)
        pairs = self.held_shares * num_tokens * self.ranks * self.num_choices
        ends = np.rint(np.cumsum(pairs)).astype(np.int64)
        counts = np.minimum(np.diff(ends, prepend=0), received)
        experts = torch.from_numpy(np.repeat(np.arange(self.num_held), counts))
        # Round-robin, so that no token gets an expert twice and all get about equally many.
        places = torch.arange(len(experts))
        picks = torch.full((received, self.num_choices), -1)
        most = min(len(experts), received * self.num_choices)
        picks[places[:most] % received, places[:most] // received] = experts[:most]
        generator = torch.Generator().manual_seed(self.seed)
        return picks[torch.randperm(received, generator=generator)].sort(1).values
