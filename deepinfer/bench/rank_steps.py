"""All rows of a plan, measured on one rank's share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from deepinfer.engine.memory.expert_form import more_bytes_as_fp8
from deepinfer.engine.model.config import ModelConfig
from deepinfer.errors import ConfigError
from deepinfer.machine import is_hopper

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
    measures = {"decode": measure_decode, "prefill": measure_prefill}
    sizes = {"decode": plan.decode_ranks, "prefill": plan.prefill_ranks}
    wanted = [phase for phase in measures if phase in plan.phases]
    for ranks in dict.fromkeys(size for phase in wanted for size in sizes[phase]):
        plans = {
            phase: _with_form_that_fits(plan, flash, ranks, phase, device)
            for phase in wanted
            if ranks in sizes[phase]
        }
        for as_fp8 in (False, True):
            parts = [
                (phase, part)
                for phase, own in plans.items()
                for part in _rows_of_form(own, flash, ranks, phase, as_fp8)
            ]
            if not parts:
                continue
            num_slots = max(_num_slots(phase, part) for phase, part in parts)
            _check_memory(plan, flash, ranks, num_slots, device, as_fp8)
            tick(f"random weights of 1 of {ranks} ranks{', experts as FP8' if as_fp8 else ''}")
            rank = RankModel.make(
                flash,
                ranks=ranks,
                context=plan.longest,
                num_slots=num_slots,
                seed=plan.seed,
                device=device,
                num_redundant=int("balanced" in plan.routing),
                experts_as_fp8=as_fp8,
            )
            for phase, part in parts:
                tick(f"{phase} of 1 of {ranks} ranks")
                yield from measures[phase](part, flash, rank)
            del rank  # frees its memory before the next one takes it


def _with_form_that_fits(
    plan: BenchPlan, flash: ModelConfig, ranks: int, phase: str, device: torch.device | str
) -> BenchPlan:
    """``plan``, but ``auto`` is FP4 for a phase where FP8 is no faster or has no room."""
    parts = _rows_of_form(plan, flash, ranks, phase, as_fp8=True)
    if plan.expert_weights != "auto" or not parts:
        return plan
    num_slots = max(_num_slots(phase, part) for part in parts)
    fit = num_that_fit(flash, ranks, plan.longest, device, experts_as_fp8=True)
    has_room = fit is not None and fit >= num_slots and is_hopper(str(device))
    return plan if has_room else replace(plan, expert_weights="fp4")


def _rows_of_form(
    plan: BenchPlan, flash: ModelConfig, ranks: int, phase: str, as_fp8: bool
) -> list[BenchPlan]:
    """Plans of those rows of a phase that have this form of experts."""
    if phase == "prefill":
        tokens = [n for n in plan.tokens if plan.prefills_as_fp8(flash, ranks, n) == as_fp8]
        return [replace(plan, tokens=tuple(tokens))] if tokens else []
    by_requests: dict[tuple[int, ...], list[int | None]] = {}
    for drafts in plan.drafts:
        requests = tuple(
            number
            for number in plan.requests
            if plan.decodes_as_fp8(flash, ranks, number, drafts) == as_fp8
        )
        by_requests.setdefault(requests, []).append(drafts)
    return [
        replace(plan, requests=requests, drafts=tuple(drafts))
        for requests, drafts in by_requests.items()
        if requests
    ]


def _num_slots(phase: str, plan: BenchPlan) -> int:
    """Most requests at once."""
    if phase == "decode":
        return max(plan.requests)
    return max(len(plan.prompts(number)) for number in plan.tokens)


def _check_memory(
    plan: BenchPlan,
    flash: ModelConfig,
    ranks: int,
    num_slots: int,
    device: torch.device | str,
    as_fp8: bool,
) -> None:
    fit = num_that_fit(flash, ranks, plan.longest, device, experts_as_fp8=as_fp8)
    if fit is not None and fit < num_slots:
        weights = rank_weight_bytes(flash, ranks)
        weights += more_bytes_as_fp8(flash) / ranks if as_fp8 else 0
        raise ConfigError(
            f"{num_slots} requests of {plan.longest:,} tokens and the weights of 1 of {ranks} "
            f"ranks ({weights / 1e9:,.0f} GB) do not fit the free memory of this GPU: {fit} "
            "requests fit; ask for fewer (--requests), a shorter --context or more ranks (--ep)"
        )
