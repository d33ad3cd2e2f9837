"""After a step: appends its tokens to the requests and tells the scheduler what was computed."""

from __future__ import annotations

import time

from deepinfer.engine.scheduling.request_state import Phase, RequestState
from deepinfer.engine.scheduling.schedule import DecodeBatch, PrefillBatch
from deepinfer.engine.scheduling.scheduler import Scheduler

from .decode_stages import DecodeResult
from .prefill import PrefillResult


def complete_prefill(
    scheduler: Scheduler, batch: PrefillBatch, result: PrefillResult, started_s: float
) -> list[RequestState]:
    """Record chunks and append first tokens; returns the requests that ended with them."""
    now = time.monotonic()
    finished = []
    for chunk, tokens, logprobs, snapshots in zip(
        batch.chunks, result.tokens, result.logprobs, result.snapshots, strict=True
    ):
        state = chunk.state
        state.scheduled_s = state.scheduled_s or started_s
        scheduler.prefilled(chunk, snapshots)
        if tokens:
            state.first_token_s = state.first_token_s or now
            state.logprobs += logprobs
            if any(map(state.append, tokens)):
                finished.append(state)
    return finished


def complete_decode(
    scheduler: Scheduler, batch: DecodeBatch, result: DecodeResult
) -> list[RequestState]:
    """Append each request's new tokens up to the one that ends it; returns those that ended.

    Tokens of a request that ended or was preempted after the step was launched are dropped: they
    come after its end, or will be drawn again.
    """
    finished = []
    for state, tokens, logprobs, num_drafts in zip(
        batch.states, result.tokens, result.logprobs, result.num_drafts, strict=True
    ):
        if state.phase is not Phase.DECODING:
            continue
        before = len(state.token_ids)
        if any(map(state.append, tokens)):
            finished.append(state)
        count = len(state.token_ids) - before
        scheduler.decoded(state, count)
        if logprobs:
            state.logprobs += logprobs[:count]
        if num_drafts:
            state.num_draft_tokens += num_drafts
            state.num_accepted_tokens += max(count - 1, 0)
    return finished
