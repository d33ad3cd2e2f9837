"""Types of the recipe: an encoded row, the format of its answer, the parsed answer."""

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
    """How the ids of an answer are parsed.

    ``is_chat=False``: plain text; control tokens appear as text and nothing is parsed.
    ``thinking_stage=None``: the prompt did not open a reasoning part.
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

    ``sampling``: only the fields set by the row, with the names of ``SamplingParams``.
    ``notes``: what was ignored or changed, and why.
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
    """``arguments``: JSON text as generated; ``is_finished``: whether the call was closed."""

    name: str
    arguments: str
    is_finished: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A parsed answer: content, reasoning (None without thinking) and tool calls."""

    content: str
    reasoning: str | None = None
    tool_calls: tuple[ParsedToolCall, ...] = ()
    num_reasoning_tokens: int = 0
    is_reasoning_unfinished: bool = False
    is_tool_call_unfinished: bool = False
