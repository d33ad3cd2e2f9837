"""The nouns that cross the engine's border: what comes in, what goes out.  No tensors, no text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from deepinfer.errors import ConfigError

FinishReason = Literal["stop", "length", "error"]

MAX_LOGPROBS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one answer is sampled.  Field names are also the flags and the row fields.

    ``temperature=0`` is greedy (lowest id wins ties).  ``max_tokens=None`` means up to the context.
    ``top_k=0`` and ``min_p=0`` switch those filters off.  ``logprobs`` asks for the chosen token's
    log-probability, ``top_logprobs`` for that many alternatives (0 to 20).
    ``seed=None`` derives a seed from the run's seed, the row number and the sample index.
    Raises: ConfigError when a value is out of range.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: bool = False
    top_logprobs: int = 0
    n: int = 1

    def __post_init__(self) -> None:
        def check(ok: bool, name: str, expected: str) -> None:
            if not ok:
                raise ConfigError(f"{name}={getattr(self, name)!r}: expected {expected}")

        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        object.__setattr__(self, "stop", tuple(self.stop))
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        check(0.0 <= self.temperature <= 100.0, "temperature", "0 to 100")
        check(0.0 < self.top_p <= 1.0, "top_p", "above 0, at most 1")
        check(self.top_k >= 0, "top_k", "0 (off) or a positive number")
        check(0.0 <= self.min_p <= 1.0, "min_p", "0 to 1")
        check(-2.0 <= self.presence_penalty <= 2.0, "presence_penalty", "-2 to 2")
        check(-2.0 <= self.frequency_penalty <= 2.0, "frequency_penalty", "-2 to 2")
        check(0.0 < self.repetition_penalty <= 10.0, "repetition_penalty", "above 0, at most 10")
        check(self.max_tokens is None or self.max_tokens >= 1, "max_tokens", "at least 1")
        check(self.min_tokens >= 0, "min_tokens", "0 or more")
        check(all(self.stop), "stop", "non-empty strings")
        check(0 <= self.top_logprobs <= MAX_LOGPROBS, "top_logprobs", f"0 to {MAX_LOGPROBS}")
        check(self.n >= 1, "n", "at least 1")
        check(self.seed is None or 0 <= self.seed < 2**64, "seed", "0 to 2**64 - 1")


class StopChecker(Protocol):
    """Made outside the engine, sees token ids only.  One per request, fed every emitted token."""

    def push(self, token_id: int) -> str | None:
        """Take the next token; return the stop string that is now complete, else None."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One answer to compute.  ``seed`` is already resolved; ``sampling.n`` is 1 in here."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    seed: int
    stop_checker: StopChecker | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """Log-probabilities at one position, before temperature and filters, after nothing else.

    ``top`` is ordered by falling probability, lower id first among equals.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTiming:
    """Seconds on the engine's monotonic clock."""

    arrived_s: float
    scheduled_s: float
    first_token_s: float
    finished_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One finished request.

    ``output_token_ids`` ends with the stop token or EOS if one ended it.  ``stop_reason`` is the
    stop string or the asked-for stop token id that matched; None for EOS.  ``num_cached_tokens``
    are those of the prompt whose global KV came from the prefix cache.
    """

    request_id: str
    output_token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: str | int | None = None
    logprobs: tuple[TokenLogprobs, ...] | None = None
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    timing: RequestTiming | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """Counters since the engine was made; the report is a difference of two of these."""

    num_steps: int = 0
    num_prefill_tokens: int = 0
    num_decode_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    accepted_per_position: Sequence[int] = ()
    prefill_s: float = 0.0
    decode_s: float = 0.0
    schedule_s: float = 0.0
    num_blocks: int = 0
    peak_blocks: int = 0
