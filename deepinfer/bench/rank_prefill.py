"""Times the prefill of whole prompts on one rank's share, in chunks as in the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from deepinfer.engine.cache.prefix_hit import snapshot_boundaries
from deepinfer.engine.execution.prefill import PrefillWorker
from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.scheduling.request_state import RequestState
from deepinfer.engine.scheduling.schedule import PrefillBatch, PrefillChunk

from .kernel_parts import kernel_parts
from .limits import prefill_row
from .plan import CHUNK_TOKENS, BenchPlan
from .rank_model import BLOCK_SIZE, RankModel
from .results import Measurement
from .rows import measured_row
from .timed import timed_steps

_LEAST_STEPS = 3


def measure_prefill(
    plan: BenchPlan,
    flash: ModelConfig,
    rank: RankModel,
    tick: Callable[[str], None] = lambda name: None,
) -> Iterator[Measurement]:
    """Rows for each routing and number of prompt tokens: bounded replay, and the other modes.
    ``tick`` is called with each row's name."""
    for routing in plan.routing:
        rank.share.routing = routing
        for number in plan.tokens:
            if len(plan.prompts(number)) > rank.num_slots:
                continue
            for mode in ("", *(plan.modes if routing == "even" else ())):
                suffix = f", {mode or routing}" if mode or routing != "even" else ""
                name = f"{number:,} tokens{suffix}"
                tick(name)
                yield _row(plan, flash, rank, number, mode, name)


def _row(
    plan: BenchPlan, flash: ModelConfig, rank: RankModel, number: int, mode: str, name: str
) -> Measurement:
    prompts = plan.prompts(number)
    replay = max(prompts) if mode == "exact" else plan.replay_tokens
    states = rank.prompts(prompts, replay)
    if mode == "batch-invariant":
        for state in states:
            state.boundaries = snapshot_boundaries(0, state.decoder_start, BLOCK_SIZE)
    spare_slots = range(rank.num_slots, rank.cache.num_slots)
    passes = list(batches(states, spare_slots if mode == "batch-invariant" else ()))
    with_decoder = sum(any(c.end > c.state.decoder_start for c in p.chunks) for p in passes)
    exchanges = len(passes) * rank.config.num_encoder_layers
    exchanges += with_decoder * rank.config.num_decoder_layers
    worker = PrefillWorker(rank.worker(0))

    def once() -> None:
        for batch in passes:
            worker.run(batch)

    steps = max(_LEAST_STEPS, plan.num_steps // 4) if mode else plan.num_steps
    timed = timed_steps(once, steps, rank.device)
    row = prefill_row(plan, flash, rank.ranks, number, replay, experts_as_fp8=rank.experts_as_fp8)
    parts = kernel_parts(once, rank.device)
    return measured_row(name, row, timed, plan, exchanges, parts, rank.present)


def batches(
    states: Sequence[RequestState], spare_slots: Iterable[int] = ()
) -> Iterator[PrefillBatch]:
    """Whole prompts in passes of at most ``CHUNK_TOKENS``, as the scheduler makes them."""
    chunks: list[PrefillChunk] = []
    room, spare = CHUNK_TOKENS, list(spare_slots)
    for state in states:
        start = 0
        while start < len(state.token_ids):
            chunks.append(PrefillChunk.next_of(state, start, room, spare, is_first=start == 0))
            start = chunks[-1].end
            room -= start - chunks[-1].start
            if not room or not chunks[-1].is_last:
                yield PrefillBatch(chunks=chunks)
                chunks, room, spare = [], CHUNK_TOKENS, list(spare_slots)
    if chunks:
        yield PrefillBatch(chunks=chunks)
