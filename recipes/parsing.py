"""``AnswerParser``: the ids of an answer to content, reasoning and tool calls."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from deepseek_recipe import (
    ChatCompletionRequest,
    ChatCompletionResponse,
    Conversation,
    ConversationRequest,
    InferenceChunk,
    InferenceFinishReason,
    ModelVersion,
    StreamProcessor,
    UserMessage,
)

from .chat import parsing_options
from .tokenizer import REQUIRED_TOKENS, Tokenizer
from .types import Answer, AnswerFormat, ParsedToolCall

_END_OF_CALLS = f"</{REQUIRED_TOKENS['tool call marker']} calls>"


class AnswerParser:
    """Parses answers of one model."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def parse(
        self, token_ids: Sequence[int], answer_format: AnswerFormat, *, num_cut_chars: int = 0
    ) -> Answer:
        """Parse a whole answer, without its end token.

        ``num_cut_chars`` characters are taken from the end of the content: a stop string and what
        came after it in the same token.
        """
        if not answer_format.is_chat:
            return Answer(content=_cut(self._tokenizer.decode(token_ids), num_cut_chars))
        response = self._run(token_ids, answer_format)
        message = response["choices"][0]["message"]
        calls = tuple(map(_tool_call, message.get("tool_calls") or ()))
        details = response["usage"].get("completion_tokens_details") or {}
        left_reasoning = self._tokenizer.think_end_id in token_ids
        return Answer(
            content=_cut(message.get("content") or "", num_cut_chars),
            reasoning=message.get("reasoning_content") if answer_format.is_thinking else None,
            tool_calls=calls,
            num_reasoning_tokens=details.get("reasoning_tokens") or 0,
            is_reasoning_unfinished=answer_format.starts_in_reasoning and not left_reasoning,
            is_tool_call_unfinished=self._has_open_block(token_ids, answer_format, calls),
        )

    def _run(self, token_ids: Sequence[int], answer_format: AnswerFormat) -> dict[str, Any]:
        request = ConversationRequest(
            Conversation([UserMessage("")], thinking_mode=answer_format.is_thinking),
            ModelVersion.DeepseekV41Flash,
        )
        generator = ChatCompletionRequest.chunk_generator(request, "", "")
        processor = StreamProcessor(
            generator, parsing_options(answer_format), self._tokenizer.wheel
        )
        chunks = processor.push(InferenceChunk.tokens(list(token_ids)))
        chunks += processor.push(InferenceChunk.finish(InferenceFinishReason.Stop))
        chunks += processor.finish()
        response = ChatCompletionResponse("", "", 0, 0, 0)
        for chunk in chunks:
            response.accumulate(chunk)
        parsed: dict[str, Any] = json.loads(response.to_json())
        return parsed

    def _has_open_block(
        self,
        token_ids: Sequence[int],
        answer_format: AnswerFormat,
        calls: Sequence[ParsedToolCall],
    ) -> bool:
        if not answer_format.has_tools:
            return False
        opened = answer_format.starts_in_tool_calls or self._tokenizer.tool_marker_id in token_ids
        if not opened:
            return False
        closed = _END_OF_CALLS in self._tokenizer.decode(token_ids)
        return not closed or not calls or not all(call.is_finished for call in calls)


def _tool_call(call: Mapping[str, Any]) -> ParsedToolCall:
    function = call["function"]
    return ParsedToolCall(
        name=function["name"],
        arguments=function["arguments"],
        is_finished=_is_object(function["arguments"]),
    )


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _cut(text: str, num_chars: int) -> str:
    return text[: max(0, len(text) - num_chars)]
