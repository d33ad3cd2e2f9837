"""The nouns of the recipe: an encoded row, how its answer is read, the parsed answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from .constraints.spec import ConstraintSpec

RowKind = Literal["prompt", "raw", "prompt_token_ids", "messages", "batch_chat", "batch_completion"]
Thinking = Literal["off", "low", "default", "max"]
ThinkingStage = Literal["reasoning_start", "reasoning_continuation", "content_continuation"]

THINKING_CHOICES: tuple[Thinking, ...] = ("off", "low", "default", "max")


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFormat:
    """How the ids of an answer become text.

    ``is_chat=False`` is plain text: control tokens show as their spelling and nothing is parsed.
    ``thinking_stage=None`` means that the prompt did not open a reasoning part.
    """

    is_chat: bool = False
    thinking_stage: ThinkingStage | None = None
    has_tools: bool = False
    starts_in_tool_calls: bool = False
    is_json: bool = False

    @property
    def is_thinking(self) -> bool:
        return self.thinking_stage is not None

    @property
    def starts_in_reasoning(self) -> bool:
        return self.thinking_stage in ("reasoning_start", "reasoning_continuation")


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedRow:
    """A row ready for the engine.

    ``sampling`` holds only what the row itself asks, under the names of ``SamplingParams``.
    ``notes`` says what was ignored or changed, and why.
    """

    row_id: str
    kind: RowKind
    prompt_token_ids: tuple[int, ...]
    answer_format: AnswerFormat
    sampling: Mapping[str, Any] = field(default_factory=dict)
    constraint: ConstraintSpec | None = None
    notes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedToolCall:
    """``arguments`` is JSON text as generated; ``is_finished`` says whether it was closed."""

    name: str
    arguments: str
    is_finished: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A parsed answer: what was said, what was thought before (None without thinking), calls."""

    content: str
    reasoning: str | None = None
    tool_calls: tuple[ParsedToolCall, ...] = ()
    num_reasoning_tokens: int = 0
    is_reasoning_unfinished: bool = False
    is_tool_call_unfinished: bool = False
