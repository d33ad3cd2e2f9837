"""Times whole prompts through one rank's share, in chunks as the engine computes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from deepinfer.engine.execution.prefill import PrefillWorker
from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.scheduling.request_state import RequestState
from deepinfer.engine.scheduling.schedule import PrefillBatch, PrefillChunk

from .kernel_parts import kernel_parts
from .limits import prefill_row
from .plan import BenchPlan
from .rank_model import RankModel
from .results import Measurement
from .rows import measured_row
from .timed import repeat_s

CHUNK_TOKENS = 8_192
_LEAST_STEPS = 3


def measure_prefill(plan: BenchPlan, flash: ModelConfig, rank: RankModel) -> Iterator[Measurement]:
    """One row for each number of prompt tokens."""
    worker = PrefillWorker(rank.worker(0))
    for number in plan.tokens:
        length = min(number, rank.context)
        count = max(1, round(number / length))
        if count > rank.num_slots:
            continue
        states = rank.prompts(count, length, plan.replay_tokens)

        def once(states: list[RequestState] = states, length: int = length) -> None:
            for batch in batches(states, length):
                worker.run(batch)

        seconds = repeat_s(once, max(_LEAST_STEPS, plan.num_steps // 4), rank.device)
        chunks = -(-number // CHUNK_TOKENS)
        exchanges = chunks * rank.config.num_encoder_layers + rank.config.num_decoder_layers
        yield measured_row(
            f"{number:,} tokens",
            prefill_row(plan, flash, number),
            seconds,
            plan,
            exchanges,
            kernel_parts(once, rank.device),
        )


def batches(states: Sequence[RequestState], length: int) -> Iterator[PrefillBatch]:
    """Prompts of ``length`` tokens chunk by chunk; several share a pass where they fit."""
    per_pass = max(1, CHUNK_TOKENS // length)
    for begin in range(0, len(states), per_pass):
        for start in range(0, length, CHUNK_TOKENS):
            end = min(start + CHUNK_TOKENS, length)
            yield PrefillBatch(
                chunks=[
                    PrefillChunk(state=state, start=start, end=end, is_first=start == 0)
                    for state in states[begin : begin + per_pass]
                ]
            )
