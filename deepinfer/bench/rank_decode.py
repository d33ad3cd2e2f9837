"""Times decode steps of one rank's share: drafting, verification and sampling."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from deepinfer.engine.execution.decode import DecodeWorker
from deepinfer.engine.execution.decode_stages import DecodeResult
from deepinfer.engine.execution.decode_step import DecodeStep
from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.scheduling.request_state import RequestState
from deepinfer.engine.scheduling.schedule import DecodeBatch

from .kernel_parts import kernel_parts
from .limits import decode_row
from .plan import BenchPlan
from .rank_drafts import auto_steps
from .rank_model import RankModel
from .results import LimitRow, Measurement
from .rows import measured_row
from .timed import timed_steps


def measure_decode(
    plan: BenchPlan,
    flash: ModelConfig,
    rank: RankModel,
    tick: Callable[[str], None] = lambda name: None,
) -> Iterator[Measurement]:
    """One row per routing, number of drafts and batch size that fits, and another one for steps
    that batch-invariant mode changes.  ``tick`` is called with each row's name."""
    for routing in plan.routing:
        rank.share.routing = routing
        suffix = "" if routing == "even" else f", {routing}"
        for drafts in plan.drafts:
            for number in plan.requests:
                if number > rank.num_slots:
                    continue
                kind = "auto" if drafts is None else f"{drafts} drafts"
                name = f"{number} requests, {kind}{suffix}"
                tick(name)
                if drafts is None:
                    yield _auto(plan, flash, rank, number, name)
                    continue
                step = rank.worker(drafts, num_requests=number)
                yield _fixed(plan, flash, rank, step, number, drafts, name)
                if step.piece_keys is None or "batch-invariant" not in plan.modes or suffix:
                    continue
                step = rank.worker(drafts, num_requests=number, is_batch_invariant=True)
                name = f"{name}, batch-invariant"
                tick(name)
                yield _fixed(plan, flash, rank, step, number, drafts, name)


def _fixed(
    plan: BenchPlan,
    flash: ModelConfig,
    rank: RankModel,
    step: DecodeStep,
    number: int,
    drafts: int,
    name: str,
) -> Measurement:
    worker = DecodeWorker(step)
    batch = begin(step, rank.decoding(plan.contexts(number)), drafts)

    def once() -> DecodeResult:
        return worker.run(batch)

    timed = timed_steps(once, plan.num_steps, rank.device, in_a_row=True)
    row = _limit(plan, flash, rank, number, drafts)
    parts = kernel_parts(once, rank.device)
    exchanges = _exchanges(rank, drafts)
    return measured_row(name, row, timed, plan, exchanges, parts, rank.present)


def _auto(
    plan: BenchPlan, flash: ModelConfig, rank: RankModel, number: int, name: str
) -> Measurement:
    """The limit is computed for the mean number of verified drafts, and their yield."""
    most = rank.config.dspark_block_size
    step = rank.worker(most, num_requests=number)
    batch = begin(step, rank.decoding(plan.contexts(number)), most)
    found = auto_steps(step, batch, plan.acceptance, plan.num_steps)
    row = measured_row(
        name,
        _limit(plan, flash, rank, number, round(found.mean_drafts)),
        found.timed,
        plan,
        _exchanges(rank, most),
        kernel_parts(found.once, rank.device),
        rank.present,
    )
    return dataclasses.replace(
        row,
        num_drafts=found.mean_drafts,
        num_tokens=number * found.mean_tokens,
        accepted_length=found.mean_tokens,
    )


def _limit(
    plan: BenchPlan, flash: ModelConfig, rank: RankModel, number: int, drafts: int
) -> LimitRow:
    """The limit for the format in which this rank stores its experts."""
    return decode_row(plan, flash, rank.ranks, number, drafts, experts_as_fp8=rank.experts_as_fp8)


def _exchanges(rank: RankModel, drafts: int) -> int:
    return rank.config.num_hidden_layers + (len(rank.config.draft_stages) if drafts else 0)


def begin(step: DecodeStep, states: list[RequestState], num_drafts: int) -> DecodeBatch:
    """Assign slots, and return a batch with ``num_drafts`` drafts per request."""
    for state in states:
        step.table.assign(state)
    step.sampler.assign(states)
    step.newest.random_(step.model.model.config.vocab_size)
    return DecodeBatch(states=states, num_drafts=[num_drafts] * len(states))
