"""The types of the engine's interface: requests, completions, statistics.  No tensors, no text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from deepinfer.errors import ConfigError

from .checks import is_list, is_number, is_whole

if TYPE_CHECKING:
    from .sampling.constraint import TokenConstraint

FinishReason = Literal["stop", "length", "error"]

MAX_LOGPROBS = 20
MAX_SAMPLES = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one answer is sampled.  Flags and row fields have the same names.

    ``temperature=0`` is greedy (lowest id wins ties).  ``max_tokens=None`` means up to the context.
    ``top_k=0`` and ``min_p=0`` disable those filters.  ``logprobs`` asks for the chosen token's
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

        stops = (self.stop,) if isinstance(self.stop, str) else self.stop
        check(is_list(stops, str) and all(stops), "stop", "non-empty strings")
        check(_are_ids(self.stop_token_ids), "stop_token_ids", "a list of token ids, 0 or more")
        check(_is_bias(self.logit_bias), "logit_bias", "token ids to numbers from -100 to 100")
        object.__setattr__(self, "stop", tuple(stops))
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        for name, (low, high, expected) in _WHOLE_NUMBERS.items():
            value = getattr(self, name)
            is_absent = value is None and name in ("max_tokens", "seed")
            check(is_absent or is_whole(value, low, high), name, expected)
        for name, (floor, ceiling, expected) in _NUMBERS.items():
            value = getattr(self, name)
            check(is_number(value, floor, ceiling), name, expected)
        check(self.top_p > 0, "top_p", _NUMBERS["top_p"][2])
        check(self.repetition_penalty > 0, "repetition_penalty", _NUMBERS["repetition_penalty"][2])
        for name in ("ignore_eos", "logprobs"):
            check(type(getattr(self, name)) is bool, name, "true or false")


# Allowed values of each field: lowest, highest, and how an error puts it.
_WHOLE_NUMBERS: Mapping[str, tuple[float, float, str]] = {
    "top_k": (0, 2**31 - 1, "0 (off) or a positive number below 2**31"),
    "max_tokens": (1, math.inf, "a whole number of at least 1"),
    "min_tokens": (0, math.inf, "0 or a positive number"),
    "top_logprobs": (0, MAX_LOGPROBS, f"a whole number, 0 to {MAX_LOGPROBS}"),
    "n": (1, MAX_SAMPLES, f"a whole number, 1 to {MAX_SAMPLES}"),
    "seed": (0, 2**64 - 1, "a whole number, 0 to 2**64 - 1"),
}
_NUMBERS: Mapping[str, tuple[float, float, str]] = {
    "temperature": (0, 100, "0 to 100"),
    "top_p": (0, 1, "above 0, at most 1"),
    "min_p": (0, 1, "0 to 1"),
    "presence_penalty": (-2, 2, "-2 to 2"),
    "frequency_penalty": (-2, 2, "-2 to 2"),
    "repetition_penalty": (0, 10, "above 0, at most 10"),
}


def _are_ids(value: Any) -> bool:
    return is_list(value, int) and all(token_id >= 0 for token_id in value)


def _is_bias(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        is_whole(token_id, 0, math.inf) and is_number(bias, -100, 100)
        for token_id, bias in value.items()
    )


class StopChecker(Protocol):
    """Detects stop strings from token ids.  One per request, given every emitted token."""

    def push(self, token_id: int) -> str | None:
        """Push the next token; returns the stop string that it completes, else None."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One answer to generate.  ``seed`` is already resolved; ``sampling.n`` is always 1."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    seed: int
    stop_checker: StopChecker | None = None
    constraint: TokenConstraint | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """Log-probabilities at one position, from the model's raw logits: before penalties, bias,
    temperature and filters.

    ``top`` is ordered by descending probability, lower id first among equals.
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

    ``output_token_ids`` includes the stop token or EOS that ended it.  ``stop_reason`` is the stop
    string or the requested stop token id that matched; None for EOS.  ``num_cached_tokens``: prompt
    tokens whose global KV came from the prefix cache.  ``error_kind`` is a stable identifier of an
    error that the request itself caused, None for an error of the engine.
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
    error_kind: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """Counters since the engine was created.

    Speculation: ``num_proposed_tokens`` were drafted in ``num_draft_blocks`` blocks (one per
    request and drafting step); ``num_draft_tokens`` of them were verified and
    ``num_accepted_tokens`` accepted.  ``calibration_error`` is the mean distance between expected
    and actual acceptance.  ``verify_lengths``: drafts verified per request, averaged over
    successive intervals of equally many decode steps.
    Batching: ``num_decode_rows`` is the sum of the batch sizes of ``num_decode_steps`` decode
    steps; ``decode_batches`` their mean over such intervals.
    CUDA graphs: ``num_graphs`` captured so far; preparing step sizes before the first request took
    ``capture_s`` seconds.
    Memory: ``num_out_of_memory`` steps did not fit; ``most_running`` is the present limit of
    concurrent requests.
    Expert parallelism: imbalance is the largest load of a rank divided by the mean, the worst
    before experts were rebalanced and the one after the last rebalancing; ``num_expert_moves``
    counts rebalanced layers.
    """

    num_steps: int = 0
    num_decode_steps: int = 0
    num_decode_rows: int = 0
    decode_batches: Sequence[float] = ()
    num_prefill_tokens: int = 0
    num_decode_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    num_out_of_memory: int = 0
    most_running: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    accepted_per_position: Sequence[int] = ()
    num_proposed_tokens: int = 0
    num_draft_blocks: int = 0
    verified_per_position: Sequence[int] = ()
    calibration_error: float | None = None
    verify_lengths: Sequence[float] = ()
    prefill_s: float = 0.0
    decode_s: float = 0.0
    schedule_s: float = 0.0
    num_blocks: int = 0
    peak_blocks: int = 0
    num_graphs: int = 0
    capture_s: float = 0.0
    expert_imbalance_before: float | None = None
    expert_imbalance_after: float | None = None
    num_expert_moves: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Memory of an engine's weights and caches, in bytes.

    weight_bytes    tensors as stored in the checkpoint, routed experts as kept by the engine
    block_bytes     one block of ``block_size`` tokens of the global KV
    slot_bytes      the window rings and histories of one request
    snapshot_bytes  maximum of saved rings for exact prefix hits, and of spare slots to fill
    """

    weight_bytes: int
    block_bytes: int
    num_blocks: int
    block_size: int
    slot_bytes: int
    max_num_seqs: int
    snapshot_bytes: int
    max_model_len: int

    @property
    def cache_bytes(self) -> int:
        """Blocks, rings and snapshots."""
        blocks = self.num_blocks * self.block_bytes
        return blocks + self.max_num_seqs * self.slot_bytes + self.snapshot_bytes

    @property
    def cache_tokens(self) -> int:
        """Capacity of the blocks in tokens."""
        return self.num_blocks * self.block_size

    def num_fitting(self, num_tokens: int) -> int:
        """Number of requests of ``num_tokens`` (prompt and answer) that fit at the same time."""
        blocks = max(1, -(-num_tokens // self.block_size))
        return min(self.max_num_seqs, self.num_blocks // blocks)
