"""``RequestState``: all the engine knows about one request, from arrival to completion."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from deepinfer.engine.sampling.constraint import AnswerConstraint
from deepinfer.engine.sampling.logit_rules import LogitRules
from deepinfer.engine.types import Completion, FinishReason, Request, RequestTiming, TokenLogprobs


class Phase(Enum):
    WAITING = "waiting"
    PREFILLING = "prefilling"
    TRANSFERRING = "transferring"
    DECODING = "decoding"
    FINISHED = "finished"


@dataclass(slots=True, kw_only=True, eq=False)
class RequestState:
    """Mutable; written by the scheduler only.

    token_ids             prompt, then output
    num_computed_tokens   positions whose state is in the caches
    num_in_flight         tokens after ``token_ids`` that a launched step is sampling
    decoder_start         decoder layers run from here on; fixed by the prompt, kept when preempted
    encoder_start         encoder windows do not reach before it (0 unless a hit was replayed)
    write_start           global KV before it came from the prefix cache
    max_output_tokens     the answer ends here with "length"
    """

    request: Request
    arrival: int
    arrived_s: float
    token_ids: list[int]
    num_prompt_tokens: int
    max_output_tokens: int
    decoder_start: int
    stop_token_ids: frozenset[int]
    rules: LogitRules | None = None
    constraint: AnswerConstraint | None = None
    phase: Phase = Phase.WAITING
    slot: int = -1
    blocks: list[int] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    num_published_blocks: int = 0
    boundaries: tuple[int, ...] = ()
    num_computed_tokens: int = 0
    num_in_flight: int = 0
    encoder_start: int = 0
    write_start: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str | None = None
    error_kind: str | None = None
    scheduled_s: float = 0.0
    first_token_s: float = 0.0

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def next_position(self) -> int:
        """Position of the newest token, which the next decode step runs."""
        return self.num_computed_tokens + self.num_in_flight

    def append(self, token_id: int) -> bool:
        """Append an output token; returns True if it ends the answer.

        A stop token, including EOS, is the last token of the answer.  -1 stands for a row without
        usable logits.
        """
        if token_id < 0:
            return self._fail_of_constraint() or self._fail_without_token()
        self.token_ids.append(token_id)
        sampling = self.request.sampling
        count = len(self.token_ids) - self.num_prompt_tokens
        is_complete = self.constraint is not None and self.constraint.push(token_id)
        matched = None
        if self.request.stop_checker is not None:
            matched = self.request.stop_checker.push(token_id)
        if count >= sampling.min_tokens:
            if token_id in self.stop_token_ids:
                self.finish_reason = "stop"
                is_asked = token_id in sampling.stop_token_ids
                self.stop_reason = token_id if is_asked else None
            elif matched is not None:
                self.finish_reason = "stop"
                self.stop_reason = matched
        if self.finish_reason is None and is_complete:
            self.finish_reason = "stop"
        if self.finish_reason is None:
            self._fail_of_constraint()
        if self.finish_reason is None and count >= self.max_output_tokens:
            self.finish_reason = "length"
        return self.finish_reason is not None

    def fail(self, message: str, kind: str | None = None) -> bool:
        """End this request with an error, keeping its tokens so far."""
        self.finish_reason = "error"
        self.error = message
        self.error_kind = kind
        return True

    def _fail_of_constraint(self) -> bool:
        """Fail if the constraint cannot continue."""
        error = self.constraint.error if self.constraint is not None else None
        return error is not None and self.fail(str(error), error.kind)

    def _fail_without_token(self) -> bool:
        """Fail because no token could be drawn."""
        min_tokens = self.request.sampling.min_tokens
        if self.num_output_tokens < min_tokens and len(self.stop_token_ids) > 1:
            return self.fail(
                f"no token is allowed here: min_tokens={min_tokens} forbids those in "
                "stop_token_ids, and there are no others; reduce one of the two",
                "invalid_value",
            )
        return self.fail("the model's logits are not numbers: the weights or the cache are corrupt")

    def completion(self, now_s: float) -> Completion:
        assert self.finish_reason is not None
        return Completion(
            request_id=self.request.request_id,
            output_token_ids=tuple(self.token_ids[self.num_prompt_tokens :]),
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            logprobs=tuple(self.logprobs) if self.request.sampling.logprobs else None,
            num_cached_tokens=self.num_cached_tokens,
            num_preemptions=self.num_preemptions,
            num_draft_tokens=self.num_draft_tokens,
            num_accepted_tokens=self.num_accepted_tokens,
            timing=RequestTiming(
                arrived_s=self.arrived_s,
                scheduled_s=self.scheduled_s or now_s,
                first_token_s=self.first_token_s or now_s,
                finished_s=now_s,
            ),
            error=self.error,
            error_kind=self.error_kind,
        )
