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
    """All rows of the plan; the rank is made anew where decode and prefill have other ranks.

    Raises: ConfigError if a phase has a size that does not fit the device's free memory.
    """
    rank = None
    for phase, ranks in (("decode", plan.decode_ranks), ("prefill", plan.prefill_ranks)):
        if phase not in plan.phases:
            continue
        num_slots = max(plan.requests) if phase == "decode" else _prompts_at_once(plan)
        if rank is None or rank.ranks != ranks or rank.num_slots < num_slots:
            rank = None  # frees its memory before the next one takes it
            _check_memory(plan, flash, ranks, num_slots, device)
            tick(f"random weights of 1 of {ranks} ranks")
            rank = RankModel.make(
                flash,
                ranks=ranks,
                context=plan.context,
                num_slots=num_slots,
                seed=plan.seed,
                device=device,
                num_redundant=int("balanced" in plan.routing),
            )
        tick(phase)
        yield from (measure_decode if phase == "decode" else measure_prefill)(plan, flash, rank)


def _prompts_at_once(plan: BenchPlan) -> int:
    return max(max(1, round(number / min(number, plan.context))) for number in plan.tokens)


def _check_memory(
    plan: BenchPlan, flash: ModelConfig, ranks: int, num_slots: int, device: torch.device | str
) -> None:
    fit = num_that_fit(flash, ranks, plan.context, device)
    if fit is not None and fit < num_slots:
        weights = rank_weight_bytes(flash, ranks)
        raise ConfigError(
            f"{num_slots} requests of {plan.context:,} tokens and the weights of 1 of {ranks} "
            f"ranks ({weights / 1e9:,.0f} GB) do not fit the free memory of this GPU: {fit} "
            "requests fit; ask for fewer (--requests), a shorter --context or more ranks (--ep)"
        )
