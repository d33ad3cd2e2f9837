"""The tokens that N equally loaded ranks send one of them: how many, and to which of its experts.

E experts in all, K choices of each token, H experts held here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deepinfer.engine.parallel.expert_balance import plain_placement, rebalance

# Popularity of experts is exp(SPREAD * normal): the most popular of 384 has about 4.5 times the
# mean.  An assumption; measured loads of real prompts are what EPLB works with.
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
        """[H] part of all choices that goes to each expert here."""
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
        """Tokens of all ranks with at least one expert here."""
        share = float(self.held_shares.sum())
        missed = 1.0
        for choice in range(self.num_choices):
            # Choices are without repetition: those made leave fewer experts elsewhere.
            missed *= max(0.0, 1 - share * self.num_experts / (self.num_experts - choice))
        return max(1, round(num_tokens * self.ranks * (1 - missed)))

    def choices(self, num_tokens: int) -> Tensor:
        """[received, K] i64 experts here, ascending, -1 first where there is none."""
        received = self.num_received(num_tokens)
        pairs = self.held_shares * num_tokens * self.ranks * self.num_choices
        ends = np.rint(np.cumsum(pairs)).astype(np.int64)
        counts = np.minimum(np.diff(ends, prepend=0), received)
        experts = torch.from_numpy(np.repeat(np.arange(self.num_held), counts))
        # Dealt out in turn, so that no token gets an expert twice and all get about equally many.
        places = torch.arange(len(experts))
        picks = torch.full((received, self.num_choices), -1)
        most = min(len(experts), received * self.num_choices)
        picks[places[:most] % received, places[:most] // received] = experts[:most]
        generator = torch.Generator().manual_seed(self.seed)
        return picks[torch.randperm(received, generator=generator)].sort(1).values
