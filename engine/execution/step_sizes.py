"""Warm-up: decode steps of every size are compiled, captured and timed before the first request.

So no answer waits for the first use of a size, and the draft planner knows how long each takes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import median
from typing import NamedTuple

import torch

from deepinfer.engine.scheduling.intake import detached_state
from deepinfer.engine.scheduling.request_state import RequestState
from deepinfer.engine.scheduling.schedule import DecodeBatch

from .decode import DecodeWorker
from .decode_step import DecodeStep
from .padded_sizes import padded_size, padded_sizes
from .staging import wait_for

STRIDE = 7919  # a prime, to spread token ids over the vocabulary
BUDGET_S = 4.0
_POSITION = 160
_WARM_RUNS = 2  # the first compiles, the second captures
_IN_A_ROW = 4


class StepSize(NamedTuple):
    """Kind and padded size of a step.

    plain   ``size`` requests without drafts
    verify  ``size`` tokens, which the draft stages process as well
    draft   ``depth`` drafts for each of ``size`` requests
    host    the rest of a step with drafts: all but drafting and verification
    """

    kind: str
    size: int
    depth: int = 0


def time_sizes(
    step: DecodeStep,
    states: Sequence[RequestState],
    depths: Sequence[int],
    *,
    least: int = 1,
    repeats: int = 1,
    budget_s: float = float("inf"),
) -> dict[StepSize, float]:
    """Seconds of steps with ``least`` to all of ``states``, which hold slots, and of drafting with
    each of ``depths``, at every padded size: first the largest and smallest, then the others from
    the largest down until ``budget_s`` is spent.

    The steps write to the requests' caches.
    """
    found: dict[StepSize, float] = {}
    device = torch.device(step.table.device)
    step.newest.copy_(torch.arange(len(step.newest), device=device) * STRIDE % step.vocab_size)
    calls = dict(_calls(step, states, depths, least))
    ends = {padded_size(least), padded_size(len(states)), max(kind.size for kind in calls)}
    deadline = float("inf")
    with torch.inference_mode():
        for kind in sorted(calls, key=lambda kind: (kind.size not in ends, -kind.size)):
            if kind.size not in ends:
                deadline = min(deadline, time.perf_counter() + budget_s)
                if time.perf_counter() > deadline:
                    break
            # Consecutive steps without drafts do not wait for each other.
            count = _IN_A_ROW if kind.kind == "plain" else 1
            for _ in range(_WARM_RUNS):
                calls[kind]()
            found[kind] = median(_seconds(calls[kind], device, count) for _ in range(repeats))
            step.model.catch_up()
        if step.num_drafts in depths:
            found[StepSize("host", len(states))] = _host_s(step, states, found)
    return found


def _host_s(
    step: DecodeStep, states: Sequence[RequestState], found: Mapping[StepSize, float]
) -> float:
    """Seconds that a step with all drafts of all requests takes in addition to drafting and
    verification, when steps follow each other."""
    count, depth = len(states), step.num_drafts
    worker = DecodeWorker(step)
    batch = DecodeBatch(states=list(states), num_drafts=[depth] * count)
    device = torch.device(step.table.device)
    whole_s = min(
        _seconds(lambda: worker.run(batch), device, _IN_A_ROW) for _ in range(_WARM_RUNS + 1)
    )
    drafting_s = found[StepSize("draft", padded_size(count), depth)]
    verify_s = found[StepSize("verify", padded_size(count * (1 + depth)))]
    return max(whole_s - drafting_s - verify_s, 0.0)


def _calls(
    step: DecodeStep, states: Sequence[RequestState], depths: Sequence[int], least: int
) -> Iterator[tuple[StepSize, Callable[[], object]]]:
    most, positions = len(states), [state.next_position for state in states]
    for size in padded_sizes(most):
        count = min(size, most)
        if size >= padded_size(least):
            yield StepSize("plain", size), partial(step.run, states[:count], positions[:count])
            for depth in depths:
                yield StepSize("draft", size, depth), partial(step.draft, states[:count], depth)
    if not depths:
        return
    for size in padded_sizes(most * (1 + step.num_drafts)):
        count = min(size, most)
        if size >= padded_size(least):
            ends = [number * size // count for number in range(count + 1)]
            drafts = [
                [token * STRIDE % step.vocab_size for token in range(begin + 1, end)]
                for begin, end in zip(ends, ends[1:], strict=False)
            ]
            drafts = [ids[: step.num_drafts] for ids in drafts]
            run = partial(step.run, states[:count], positions[:count], drafts)
            yield StepSize("verify", size), run


def time_first_steps(step: DecodeStep, *, chooses_drafts: bool) -> dict[StepSize, float]:
    """``time_sizes`` for an engine without requests; sizes beyond the time budget are captured when
    they first occur.  Drafts of every depth can occur only if a planner chooses them."""
    depths = range(1, step.num_drafts + 1) if chooses_drafts else (step.num_drafts,)
    states = _dummy_states(step)
    return time_sizes(step, states, depths if step.num_drafts else (), budget_s=BUDGET_S)


def _dummy_states(step: DecodeStep) -> list[RequestState]:
    """A request in every slot; all share one block, since nothing reads what they write."""
    longest = step.table.blocks.shape[1] * step.table.block_size
    position = max(0, min(_POSITION, longest - step.num_drafts - 1))
    num_blocks = -(-(position + step.num_drafts + 1) // step.table.block_size)
    states = [detached_state(slot) for slot in range(len(step.newest))]
    for slot, state in enumerate(states):
        state.slot, state.blocks, state.num_computed_tokens = slot, [0] * num_blocks, position
        step.table.assign(state)
    return states


def _seconds(call: Callable[[], object], device: torch.device, count: int = 1) -> float:
    """Seconds per call of ``count`` consecutive calls, from idle device to idle device."""
    wait_for(device)
    started = time.perf_counter()
    for _ in range(count):
        call()
    wait_for(device)
    return (time.perf_counter() - started) / count
