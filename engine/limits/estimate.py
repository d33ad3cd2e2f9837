"""How long a run will take: a simulation of the scheduler's policy with measured step times."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import islice

from .step_times import StepTimes


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One answer.  ``num_computed``: prompt tokens that no prefix hit saves."""

    num_prompt: int
    num_computed: int
    num_output: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEstimate:
    """``num_decode_rows``: sum of the batch sizes of all decode steps."""

    num_prefill_steps: int
    num_decode_steps: int
    num_decode_rows: int
    prefill_s: float
    decode_s: float

    @property
    def step_s(self) -> float:
        return self.prefill_s + self.decode_s


def estimate_run(
    requests: Iterable[PlannedRequest],
    times: StepTimes,
    *,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    cache_tokens: int,
) -> RunEstimate:
    """Simulate ``requests``: prefill as long as a request can start, else decode.

    As in the scheduler, prompts are taken in groups, the longest of a group first, and share
    prefill steps up to the token limit, chunked if necessary.  All requests of a decode step
    advance by the same number of tokens.  A request waits until its whole answer fits into the
    caches; preemption is not simulated.
    """
    waiting = _longest_first(requests, 2 * max_num_seqs)
    following = next(waiting, None)
    running: list[tuple[float, int]] = []  # (clock at which it ends, its tokens)
    clock = 0.0  # tokens that a request running since the start would have
    held = num_prefills = num_decodes = num_rows = 0
    prefill_s = decode_s = 0.0
    while following is not None or running:
        tokens = 0
        while following is not None and len(running) < max_num_seqs:
            size = following.num_prompt + following.num_output
            if running and held + size > cache_tokens:
                break
            tokens += max(following.num_computed, 1)
            held += size
            heappush(running, (clock + max(following.num_output - 1, 0), size))
            following = next(waiting, None)
        if tokens:
            steps = -(-tokens // max_num_batched_tokens)
            num_prefills += steps
            prefill_s += steps * times.prefill_base_s + tokens * times.prefill_token_s
        else:
            number = len(running)
            rate = times.tokens_per_step(number)
            steps = max(1, math.ceil((running[0][0] - clock) / rate - 1e-9))
            num_decodes += steps
            num_rows += steps * number
            decode_s += steps * times.decode_s(number)
            clock += steps * rate
        while running and running[0][0] <= clock + 1e-9:
            held -= heappop(running)[1]
    return RunEstimate(
        num_prefill_steps=num_prefills,
        num_decode_steps=num_decodes,
        num_decode_rows=num_rows,
        prefill_s=prefill_s,
        decode_s=decode_s,
    )


def _longest_first(requests: Iterable[PlannedRequest], size: int) -> Iterator[PlannedRequest]:
    source = iter(requests)
    while group := list(islice(source, size)):
        yield from sorted(group, key=lambda request: -request.num_prompt)
