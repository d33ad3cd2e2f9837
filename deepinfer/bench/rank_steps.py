"""Times decode and prefill steps of one rank's share, as the engine runs them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from deepinfer.engine.execution.decode_step import DecodeStep
from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.scheduling.request_state import RequestState

from .kernel_parts import kernel_parts
from .limits import decode_row, prefill_row
from .plan import BenchPlan
from .rank_model import RankModel
from .results import LimitRow, Measurement

_WARM_STEPS = 3
_CHUNK_TOKENS = 8_192


def measure_rank(
    plan: BenchPlan,
    flash: ModelConfig,
    device: torch.device | str,
    tick: Callable[[str], None] = lambda name: None,
) -> Iterator[Measurement]:
    """All rows of the plan; the rank is made anew where decode and prefill have other ranks."""
    rank = None
    for phase, ranks in (("decode", plan.decode_ranks), ("prefill", plan.prefill_ranks)):
        if phase not in plan.phases:
            continue
        num_slots = max(plan.requests) if phase == "decode" else _prompts_at_once(plan)
        if rank is None or rank.ranks != ranks or rank.num_slots < num_slots:
            rank = None  # frees its memory before the next one takes it
            tick(f"random weights of 1 of {ranks} ranks")
            rank = RankModel.make(
                flash,
                ranks=ranks,
                context=plan.context,
                num_slots=num_slots,
                seed=plan.seed,
                device=device,
            )
        tick(phase)
        yield from (measure_decode if phase == "decode" else measure_prefill)(plan, flash, rank)


def _prompts_at_once(plan: BenchPlan) -> int:
    return max(max(1, round(number / min(number, plan.context))) for number in plan.tokens)


def measure_decode(plan: BenchPlan, flash: ModelConfig, rank: RankModel) -> Iterator[Measurement]:
    """One row for each number of requests that the rank has room for."""
    worker = rank.worker(plan.num_drafts)
    for number in plan.requests:
        if number > rank.num_slots:
            continue
        states = rank.states(number, num_computed=rank.context)
        for state in states:
            worker.table.assign(state)
        worker.sampler.assign(states)
        seconds = _repeat(
            lambda states=states: _decode_once(worker, states, plan.num_drafts),  # type: ignore[misc]
            plan.num_steps,
            rank.device,
        )
        parts = _parts(
            lambda states=states: _decode_once(worker, states, plan.num_drafts),  # type: ignore[misc]
            rank,
        )
        limit = decode_row(plan, flash, number)
        exchanges = rank.config.num_hidden_layers
        exchanges += len(rank.config.draft_stages) if plan.num_drafts else 0
        name = f"{number} requests, {plan.num_drafts} drafts"
        yield _row(name, limit, seconds, plan, exchanges, parts)


def measure_prefill(plan: BenchPlan, flash: ModelConfig, rank: RankModel) -> Iterator[Measurement]:
    """One row for each number of prompt tokens."""
    worker = rank.worker(0)
    for number in plan.tokens:
        length = min(number, rank.context)
        count = max(1, round(number / length))
        if count > rank.num_slots:
            continue
        states = rank.states(count, num_computed=0)
        window = rank.config.sliding_window if plan.replay_tokens is None else plan.replay_tokens
        for state in states:
            state.decoder_start = max(0, length - window)
            worker.table.assign(state)
        seconds = _repeat(
            lambda states=states, length=length: _prefill_once(  # type: ignore[misc]
                worker, rank, states, length
            ),
            max(3, plan.num_steps // 4),
            rank.device,
        )
        parts = _parts(
            lambda states=states, length=length: _prefill_once(  # type: ignore[misc]
                worker, rank, states, length
            ),
            rank,
        )
        limit = prefill_row(plan, flash, number)
        chunks = -(-number // _CHUNK_TOKENS)
        exchanges = chunks * rank.config.num_encoder_layers + rank.config.num_decoder_layers
        yield _row(f"{number:,} tokens", limit, seconds, plan, exchanges, parts)


def _decode_once(worker: DecodeStep, states: list[RequestState], num_drafts: int) -> Tensor:
    """Draft, read the drafts, verify them, draw: what a step of the engine launches."""
    drafts = None
    if num_drafts:
        drafts = [ids[:num_drafts] for ids in worker.draft(states).token_ids.tolist()]
    output = worker.run(states, [state.num_computed_tokens for state in states], drafts)
    return worker.sampler.draw(output.logits, output.slots, output.positions)


def _prefill_once(
    worker: DecodeStep, rank: RankModel, states: list[RequestState], length: int
) -> None:
    """Whole prompts, chunk by chunk; several prompts share a chunk where they fit."""
    per_pass = max(1, _CHUNK_TOKENS // length)
    for begin in range(0, len(states), per_pass):
        batch_states = states[begin : begin + per_pass]
        for start in range(0, length, _CHUNK_TOKENS):
            size = min(_CHUNK_TOKENS, length - start)
            lens = [size] * len(batch_states)
            token_ids = torch.arange(size * len(batch_states)) % rank.config.vocab_size
            last = torch.tensor(lens).cumsum(0) - 1
            batch = worker.table.batch(
                batch_states, [start] * len(batch_states), token_ids.numpy(), lens,
                last.numpy() if start + size == length else last.numpy()[:0],
            )  # fmt: skip
            worker.model.forward(batch)


def _repeat(call: Callable[[], object], count: int, device: torch.device) -> tuple[float, ...]:
    """Wall times of ``count`` calls, each from an idle device to an idle device."""
    times = []
    for number in range(_WARM_STEPS + count):
        _wait(device)
        started = time.perf_counter()
        with torch.inference_mode():
            call()
        _wait(device)
        if number >= _WARM_STEPS:
            times.append(time.perf_counter() - started)
    return tuple(times)


def _parts(call: Callable[[], object], rank: RankModel) -> dict[str, float]:
    if rank.device.type != "cuda":
        return {}
    with torch.inference_mode():
        return kernel_parts(call)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _row(
    name: str,
    limit: LimitRow,
    seconds: tuple[float, ...],
    plan: BenchPlan,
    exchanges: int,
    parts: Mapping[str, float],
) -> Measurement:
    """A measured row beside its limit; the link is modelled, each exchange there and back."""
    link_s = limit.link_s
    if limit.ranks > 1:
        link_s += 2 * exchanges * plan.exchange().latency_s
    return Measurement(
        phase=limit.phase,
        name=name,
        size=limit.size,
        context=limit.context,
        ranks=limit.ranks,
        num_drafts=limit.num_drafts,
        num_tokens=limit.num_tokens,
        step_s=seconds,
        link_s=link_s,
        limit_overlap_s=limit.overlap_s,
        limit_serial_s=limit.serial_s,
        parts_s=parts,
        accepted_length=limit.num_tokens / limit.size if limit.phase == "decode" else None,
    )
