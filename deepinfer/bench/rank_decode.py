"""Times decode steps of one rank's share: draft, read the drafts, verify them, draw."""

from __future__ import annotations

from collections.abc import Iterator

from deepinfer.engine.execution.decode import DecodeResult, DecodeWorker
from deepinfer.engine.execution.decode_step import DecodeStep
from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.scheduling.request_state import RequestState
from deepinfer.engine.scheduling.schedule import DecodeBatch

from .kernel_parts import kernel_parts
from .limits import decode_row
from .plan import BenchPlan
from .rank_model import RankModel
from .results import Measurement
from .rows import measured_row
from .timed import repeat_s


def measure_decode(plan: BenchPlan, flash: ModelConfig, rank: RankModel) -> Iterator[Measurement]:
    """One row for each number of requests that the rank has room for."""
    step = rank.worker(plan.num_drafts, plan.context)
    worker = DecodeWorker(step)
    exchanges = rank.config.num_hidden_layers
    exchanges += len(rank.config.draft_stages) if plan.num_drafts else 0
    for number in plan.requests:
        if number > rank.num_slots:
            continue
        batch = begin(step, rank.decoding(number, plan.context), plan.num_drafts)

        def once(batch: DecodeBatch = batch) -> DecodeResult:
            return worker.run(batch)

        seconds = repeat_s(once, plan.num_steps, rank.device)
        yield measured_row(
            f"{number} requests, {plan.num_drafts} drafts",
            decode_row(plan, flash, number),
            seconds,
            plan,
            exchanges,
            kernel_parts(once, rank.device),
        )


def begin(step: DecodeStep, states: list[RequestState], num_drafts: int) -> DecodeBatch:
    """Requests in their slots, as a step with so many drafts of each."""
    for state in states:
        step.table.assign(state)
    step.sampler.assign(states)
    return DecodeBatch(states=states, num_drafts=[num_drafts] * len(states))
