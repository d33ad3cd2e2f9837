"""Measures a ``StepProfile`` with dummy steps on an unused cache."""

from __future__ import annotations

import itertools
import platform
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from deepinfer.engine.config import EngineConfig
from deepinfer.engine.execution.batch import ForwardBatch, ForwardOutput
from deepinfer.engine.execution.runner import Cache, Runner
from deepinfer.engine.execution.staging import wait_for
from deepinfer.engine.execution.step_sizes import STRIDE

from .step_profile import StepProfile, step_clock

BUDGET_S = 0.6
NUM_REQUESTS = (1, 64, 8, 16, 256)
MOST_TOKENS = 256
MOST_CPU_REQUESTS = 64
POSITION = 160


def device_name(device: str) -> str:
    """The device that a profile is valid for: the processor, and on a CPU its threads."""
    if torch.device(device).type != "cpu":
        return str(torch.get_device_module(device).get_device_name(device))
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"


@torch.inference_mode()
def measure_steps(model: Runner, cache: Cache, config: EngineConfig) -> StepProfile:
    """Time drafting and verification, first for the smallest and a large number of requests, then
    for those in between, then repeatedly until the budget is spent.  The best times count."""
    counts = [n for n in NUM_REQUESTS if n < config.max_num_seqs]
    counts.insert(min(1, len(counts)), config.max_num_seqs)
    if config.device == "cpu":
        counts = [n for n in counts if n <= MOST_CPU_REQUESTS or n == min(counts)]
    deadline = time.perf_counter() + BUDGET_S
    actions: dict[int, list[Callable[[], None]]] = {}
    best: dict[int, list[float]] = {}
    for number in itertools.cycle(counts):
        is_needed = len(best) < min(2, len(counts))
        if time.perf_counter() > deadline and not is_needed:
            break
        if number not in actions:
            actions[number] = _actions(model, cache, config, number)
            if not best or config.device != "cpu":
                _times(actions[number], config.device)  # warm-up, including compilation
        times = _times(actions[number], config.device)
        best[number] = [min(pair) for pair in zip(times, best.get(number, times), strict=True)]
    return _profile(config, best)


def _profile(config: EngineConfig, best: dict[int, list[float]]) -> StepProfile:
    """The profile, with times of full blocks extrapolated from partial ones."""
    numbers = sorted(best)
    draft_s, single_s, seed_s, part_s = zip(*(best[number] for number in numbers), strict=True)
    block_s = []
    for number, seed, single, part in zip(numbers, seed_s, single_s, part_s, strict=True):
        scale = config.num_speculative_tokens / _measured_drafts(config, number)
        block_s.append(single + seed + max(part - single - seed, 0.0) * scale)
    return StepProfile(
        device=device_name(config.device),
        block_size=config.num_speculative_tokens,
        num_requests=tuple(numbers),
        draft_s=draft_s,
        first_s=draft_s,  # without padding, whole blocks are always drafted
        seed_s=seed_s,
        single_s=single_s,
        block_s=tuple(block_s),
    )


def _measured_drafts(config: EngineConfig, number: int) -> int:
    """Drafts per request to measure: fewer if a whole block would take too long."""
    return min(config.num_speculative_tokens, max(1, MOST_TOKENS // number - 1))


def _times(actions: Sequence[Callable[[], None]], device: str) -> list[float]:
    seconds, clock = [], step_clock(device)
    for action in actions:
        started = clock()
        action()
        wait_for(device)
        seconds.append(clock() - started)
    return seconds


def _actions(
    model: Runner, cache: Cache, config: EngineConfig, number: int
) -> list[Callable[[], None]]:
    """Functions to be called in this order: drafting, a step without drafts, feeding its tokens to
    the draft stages, and a step with drafts that are fed to them."""
    anchors = torch.zeros(number, dtype=torch.int64, device=config.device)
    slots = torch.arange(number, device=config.device)
    position = min(POSITION, (config.max_model_len or POSITION) - 1)
    single = _dummy_batch(model, config, number, 1)
    block = _dummy_batch(model, config, number, 1 + _measured_drafts(config, number))
    outputs: list[ForwardOutput] = []

    def draft() -> None:
        model.draft(
            anchors,
            anchors + position,
            slots,
            anchors,
            cache,
            lambda logits, positions: logits.argmax(-1),
            config.num_speculative_tokens,
            False,
        )

    def forward() -> None:
        outputs[:] = [model.forward(single, cache)]

    def seed() -> None:
        _seed(model, cache, single, *outputs)

    def verify() -> None:
        _seed(model, cache, block, model.forward(block, cache))

    return [draft, forward, seed, verify]


def _seed(model: Runner, cache: Cache, batch: ForwardBatch, output: ForwardOutput) -> None:
    rows = output.main_rows
    slots = batch.state_slots[batch.request_rows[rows]]
    positions = batch.positions[rows]
    model.seed_draft(output.main_hidden, positions, slots, batch.decoder_lens, cache)


def _dummy_batch(model: Runner, config: EngineConfig, count: int, length: int) -> ForwardBatch:
    """``length`` tokens at the same positions of ``count`` requests, which can share blocks, since
    nothing reads what they write.  The tokens differ, so that they use different experts."""
    first = max(0, min(POSITION, (config.max_model_len or POSITION) - length))
    num_blocks = -(-(first + length) // config.block_size)
    starts = [0] * count
    return ForwardBatch.of(
        token_ids=np.arange(count * length) * STRIDE % model.config.vocab_size,
        query_lens=[length] * count,
        first=[first] * count,
        block_table=[[0] * num_blocks] * count,
        state_slots=range(count),
        encoder_start=starts,
        decoder_start=starts,
        write_start=starts,
        logit_rows=range(count * length),
        device=config.device,
    )
