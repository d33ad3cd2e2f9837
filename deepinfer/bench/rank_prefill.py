"""Times whole prompts through one rank's share, in chunks as the engine computes them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise

from deepinfer.engine.cache.prefix_hit import snapshot_boundaries
from deepinfer.engine.execution.prefill import PrefillWorker
from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.scheduling.request_state import RequestState
from deepinfer.engine.scheduling.schedule import PrefillBatch, PrefillChunk

from .kernel_parts import kernel_parts
from .limits import prefill_row
from .plan import BenchPlan
from .rank_model import BLOCK_SIZE, RankModel
from .results import Measurement
from .rows import measured_row
from .timed import timed_steps

CHUNK_TOKENS = 8_192
_LEAST_STEPS = 3


def measure_prefill(plan: BenchPlan, flash: ModelConfig, rank: RankModel) -> Iterator[Measurement]:
    """Rows for each routing and number of prompt tokens: the plan's replay, and the other modes."""
    for routing in plan.routing:
        rank.share.routing = routing
        for number in plan.tokens:
            if max(1, round(number / min(number, rank.context))) > rank.num_slots:
                continue
            for mode in ("", *(plan.modes if routing == "even" else ())):
                suffix = f", {mode or routing}" if mode or routing != "even" else ""
                yield _row(plan, flash, rank, number, mode, f"{number:,} tokens{suffix}")


def _row(
    plan: BenchPlan, flash: ModelConfig, rank: RankModel, number: int, mode: str, name: str
) -> Measurement:
    length = min(number, rank.context)
    replay = length if mode == "exact" else plan.replay_tokens
    states = rank.prompts(max(1, round(number / length)), length, replay)
    saved: tuple[int, ...] = ()
    if mode == "batch-invariant":
        saved = snapshot_boundaries(0, states[0].decoder_start, BLOCK_SIZE)
    worker = PrefillWorker(rank.worker(0))

    def once() -> None:
        for batch in batches(states, length, saved):
            worker.run(batch)

    timed = timed_steps(once, max(_LEAST_STEPS, plan.num_steps // 4), rank.device)
    chunks = -(-number // CHUNK_TOKENS)
    exchanges = chunks * rank.config.num_encoder_layers
    exchanges += (chunks if mode == "exact" else 1) * rank.config.num_decoder_layers
    row = prefill_row(plan, flash, number, replay)
    parts = kernel_parts(once, rank.device)
    return measured_row(name, row, timed, plan, exchanges, parts)


def batches(
    states: Sequence[RequestState], length: int, saved: Collection[int] = ()
) -> Iterator[PrefillBatch]:
    """Prompts of ``length`` tokens chunk by chunk; several share a pass where they fit.

    A chunk also ends where rings are ``saved``, as the scheduler lets it.
    """
    per_pass = max(1, CHUNK_TOKENS // length)
    ends = sorted({*range(0, length, CHUNK_TOKENS), *saved, length})
    for begin in range(0, len(states), per_pass):
        for start, end in pairwise(ends):
            yield PrefillBatch(
                chunks=[
                    PrefillChunk(
                        state=state, start=start, end=end, is_first=start == 0,
                        is_saved=end in saved,
                    )
                    for state in states[begin : begin + per_pass]
                ]
            )  # fmt: skip
