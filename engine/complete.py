"""After a step: append its tokens to the requests and tell the scheduler what was computed."""

from __future__ import annotations

import time

from .decode import DecodeResult
from .prefill import PrefillResult
from .request_state import RequestState
from .schedule import DecodeBatch, PrefillBatch
from .scheduler import Scheduler


def complete_prefill(
    scheduler: Scheduler, batch: PrefillBatch, result: PrefillResult
) -> list[RequestState]:
    """Note the chunks and append first tokens; returns the requests that ended with theirs."""
    now = time.monotonic()
    finished = []
    for chunk, token, logprobs, snapshot in zip(
        batch.chunks, result.tokens, result.logprobs, result.snapshots, strict=True
    ):
        state = chunk.state
        state.scheduled_s = state.scheduled_s or now
        scheduler.prefilled(chunk, snapshot)
        if token is None:
            continue
        state.first_token_s = state.first_token_s or now
        if logprobs is not None:
            state.logprobs.append(logprobs)
        if state.append(token):
            finished.append(state)
    return finished


def complete_decode(
    scheduler: Scheduler, batch: DecodeBatch, result: DecodeResult
) -> list[RequestState]:
    """Append each request's new tokens up to the one that ends it; returns those that ended."""
    finished = []
    for state, tokens, logprobs in zip(batch.states, result.tokens, result.logprobs, strict=True):
        before = state.num_output_tokens
        if any(map(state.append, tokens)):
            finished.append(state)
        count = state.num_output_tokens - before
        scheduler.decoded(state, count)
        state.logprobs += logprobs[:count]
    return finished
