"""The output of one row: samples, usage, effective sampling parameters, or an error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from deepinfer.engine.types import FinishReason, RequestTiming, SamplingParams, TokenLogprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One parsed call.  ``id`` derives from the row id and the call's index; ``arguments`` is the
    JSON text as generated (an unfinished call keeps what there is)."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One answer.  ``text`` is the answer only; the thinking before it is in ``reasoning``.

    ``finish_reason`` is the engine's, or ``tool_calls`` if the answer ended with calls.
    ``warnings`` are identifiers such as ``unfinished_reasoning`` or ``unfinished_tool_call``.
    ``constraint``: whether the text of the finished answer satisfies its constraint: ``valid``,
    ``invalid``, ``incomplete`` (it was cut off); None without a constraint.
    """

    text: str
    reasoning: str | None
    tool_calls: tuple[ToolCall, ...]
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | str
    stop_reason: str | int | None
    seed: int
    logprobs: tuple[TokenLogprobs, ...] | None = None
    warnings: tuple[str, ...] = ()
    constraint: str | None = None
    timing: RequestTiming | None = None
    num_preemptions: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts of a row, summed over its samples."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """The result of one row: ``samples`` (as many as ``sampling.n``), or ``error``.

    ``notes``: where the effective sampling or handling differs from what the row asked for, such as
    a ``temperature`` forced by thinking mode, or an unsupported field.
    """

    row: int
    request_id: str
    kind: str = ""
    prompt_token_ids: tuple[int, ...] = ()
    samples: tuple[Sample, ...] = ()
    usage: Usage | None = None
    sampling: SamplingParams | None = None
    notes: Mapping[str, str] = field(default_factory=dict)
    error_kind: str | None = None
    error: str | None = None

    @property
    def text(self) -> str:
        """The answer of the first sample; the empty string for an error."""
        return self.samples[0].text if self.samples else ""

    @property
    def reasoning(self) -> str | None:
        """The reasoning of the first sample, if there is any."""
        return self.samples[0].reasoning if self.samples else None

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.samples[0].token_ids if self.samples else ()

    @property
    def finish_reason(self) -> FinishReason | str:
        return self.samples[0].finish_reason if self.samples else "error"
