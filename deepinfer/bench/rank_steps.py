"""All rows of a plan, measured on one rank's share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from deepinfer.engine.model.config import ModelConfig
from deepinfer.errors import ConfigError

from .limits import rank_weight_bytes
from .plan import BenchPlan
from .rank_decode import measure_decode
from .rank_model import RankModel, num_that_fit
from .rank_prefill import measure_prefill
from .results import Measurement


def measure_rank(
    plan: BenchPlan,
    flash: ModelConfig,
    device: torch.device | str,
    tick: Callable[[str], None] = lambda name: None,
) -> Iterator[Measurement]:
    """All rows of the plan, one size of the deployment after the other.

    Raises: ConfigError if a phase has a size that does not fit the device's free memory.
    """
    by_phase = {
        "decode": (plan.decode_ranks, max(plan.requests), measure_decode),
        "prefill": (plan.prefill_ranks, _prompts_at_once(plan), measure_prefill),
    }
    wanted = {phase: by_phase[phase] for phase in by_phase if phase in plan.phases}
    for ranks in dict.fromkeys(size for sizes, _, _ in wanted.values() for size in sizes):
        here = {phase: found for phase, found in wanted.items() if ranks in found[0]}
        num_slots = max(slots for _, slots, _ in here.values())
        _check_memory(plan, flash, ranks, num_slots, device)
        tick(f"random weights of 1 of {ranks} ranks")
        rank = RankModel.make(
            flash,
            ranks=ranks,
            context=plan.longest,
            num_slots=num_slots,
            seed=plan.seed,
            device=device,
            num_redundant=int("balanced" in plan.routing),
        )
        for phase, (_, _, measure) in here.items():
            tick(f"{phase} of 1 of {ranks} ranks")
            yield from measure(plan, flash, rank)
        del rank  # frees its memory before the next one takes it


def _prompts_at_once(plan: BenchPlan) -> int:
    return max(len(plan.prompts(number)) for number in plan.tokens)


def _check_memory(
    plan: BenchPlan, flash: ModelConfig, ranks: int, num_slots: int, device: torch.device | str
) -> None:
    fit = num_that_fit(flash, ranks, plan.longest, device)
    if fit is not None and fit < num_slots:
        weights = rank_weight_bytes(flash, ranks)
        raise ConfigError(
            f"{num_slots} requests of {plan.longest:,} tokens and the weights of 1 of {ranks} "
            f"ranks ({weights / 1e9:,.0f} GB) do not fit the free memory of this GPU: {fit} "
            "requests fit; ask for fewer (--requests), a shorter --context or more ranks (--ep)"
        )
