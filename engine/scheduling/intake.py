"""Makes ``RequestState``s of new requests, with the checks that need the model's sizes."""

from __future__ import annotations

import time
from collections.abc import Sequence

from deepinfer.engine.config import EngineConfig
from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.sampling.constraint import AnswerConstraint
from deepinfer.engine.sampling.logit_rules import LogitRules
from deepinfer.engine.types import Request, SamplingParams

from .request_state import RequestState


def make_state(
    request: Request, arrival: int, config: EngineConfig, model: ModelConfig
) -> RequestState:
    """The state of a new request; one that can never run is finished with an error at once.

    ``decoder_start`` is fixed here: the last window of the prompt (bounded replay), or 0 in exact
    mode.
    """
    sampling, prompt = request.sampling, request.prompt_token_ids
    max_model_len = config.max_model_len
    assert max_model_len is not None
    room = max_model_len - len(prompt)
    limit = room if sampling.max_tokens is None else min(sampling.max_tokens, room)
    ends = set(sampling.stop_token_ids)
    if not sampling.ignore_eos:
        ends.add(model.eos_token_id)
    state = RequestState(
        request=request,
        arrival=arrival,
        arrived_s=time.monotonic(),
        token_ids=list(prompt),
        num_prompt_tokens=len(prompt),
        max_output_tokens=limit,
        decoder_start=0 if config.exact else max(0, len(prompt) - model.sliding_window),
        stop_token_ids=frozenset(ends),
    )
    problem = _problem(request, max_model_len, model.vocab_size)
    if problem is None:
        state.rules = LogitRules.of(sampling, tuple(ends))
        if request.constraint is not None:
            state.constraint = AnswerConstraint(request.constraint)
    else:
        state.fail(problem)
    return state


def detached_state(number: int, token_ids: Sequence[int] = (0,)) -> RequestState:
    """A request without a client here: a prompt from another rank, or a dummy for timing steps.

    It has no slot or blocks yet, and generates at most one token, with no stop conditions.
    """
    return RequestState(
        request=Request(
            request_id=str(number),
            prompt_token_ids=tuple(token_ids),
            sampling=SamplingParams(),
            seed=number,
        ),
        arrival=number,
        arrived_s=0.0,
        token_ids=list(token_ids),
        num_prompt_tokens=len(token_ids),
        max_output_tokens=1,
        decoder_start=0,
        stop_token_ids=frozenset(),
    )


def _problem(request: Request, max_model_len: int, vocab_size: int) -> str | None:
    """Why a request is invalid, or None."""
    prompt, sampling = request.prompt_token_ids, request.sampling
    if not prompt:
        return "the prompt is empty: at least one token is needed"
    if len(prompt) >= max_model_len:
        return (
            f"the prompt has {len(prompt)} tokens; with max_model_len={max_model_len} at most "
            f"{max_model_len - 1} leave space for an answer"
        )
    if min(prompt) < 0 or max(prompt) >= vocab_size:
        wrong = next(t for t in prompt if not 0 <= t < vocab_size)
        return f"prompt token id {wrong} is not in the vocabulary of {vocab_size} tokens"
    for name, ids in (
        ("logit_bias", sampling.logit_bias),
        ("stop_token_ids", sampling.stop_token_ids),
    ):
        for token_id in ids:
            if not 0 <= token_id < vocab_size:
                return (
                    f"{name}: token id {token_id} is not in the vocabulary of {vocab_size} tokens"
                )
    if sampling.n != 1:
        return f"n={sampling.n}: the engine takes n=1; add one request per sample"
    return None
