"""``AnswerParser``: parses token ids into content, reasoning and tool calls."""

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
from .tokenizer import REQUIRED_TOKENS, Tokenizer, new_byte_decoder
from .types import Answer, AnswerFormat, ParsedToolCall

_END_OF_CALLS = f"</{REQUIRED_TOKENS['tool call marker']} calls>"


class AnswerParser:
    """Parses answers of one model."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def parse(
        self, token_ids: Sequence[int], answer_format: AnswerFormat, *, num_cut_chars: int = 0
    ) -> Answer:
        """Parse a complete answer, without its end token.

        ``num_cut_chars`` characters are removed from the end of the content: a stop string, and
        what follows it in the same token.
        """
        if not answer_format.is_chat:
            return Answer(content=_cut(self._tokenizer.decode(token_ids), num_cut_chars))
        whole = self._num_whole(token_ids)
        message = self._run(token_ids[:whole], answer_format)
        content, reasoning = message.get("content") or "", message.get("reasoning_content")
        calls = tuple(map(_tool_call, message.get("tool_calls") or ()))
        num_reasoning_tokens = self._num_reasoning(token_ids, answer_format)
        is_reasoning = answer_format.starts_in_reasoning and num_reasoning_tokens == len(token_ids)
        has_block = self._has_block(token_ids, answer_format)
        rest = self._tokenizer.decode(token_ids[whole:])
        if is_reasoning:
            reasoning = (reasoning or "") + rest
        elif not has_block:
            content += rest
        return Answer(
            content=_cut(content, num_cut_chars),
            reasoning=reasoning if answer_format.is_thinking else None,
            tool_calls=calls,
            num_reasoning_tokens=num_reasoning_tokens,
            is_reasoning_unfinished=is_reasoning,
            is_tool_call_unfinished=has_block and not self._is_closed(token_ids, calls),
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
        message: dict[str, Any] = json.loads(response.to_json())["choices"][0]["message"]
        return message

    def _num_whole(self, token_ids: Sequence[int]) -> int:
        """Number of tokens up to the last whole character; the official parser drops the rest."""
        data = b"".join(map(self._tokenizer.token_bytes, token_ids))
        if not data.decode("utf-8", "replace").endswith("\ufffd"):
            return len(token_ids)
        decoder, whole = new_byte_decoder(), 0
        for place, token_id in enumerate(token_ids, start=1):
            text = decoder.decode(self._tokenizer.token_bytes(token_id))
            if not decoder.getstate()[0] and not text.endswith("\ufffd"):
                whole = place
        return whole

    def _num_reasoning(self, token_ids: Sequence[int], answer_format: AnswerFormat) -> int:
        if not answer_format.starts_in_reasoning:
            return 0
        end = self._tokenizer.think_end_id
        return token_ids.index(end) if end in token_ids else len(token_ids)

    def _has_block(self, token_ids: Sequence[int], answer_format: AnswerFormat) -> bool:
        opened = answer_format.starts_in_tool_calls or self._tokenizer.tool_marker_id in token_ids
        return answer_format.has_tools and opened

    def _is_closed(self, token_ids: Sequence[int], calls: Sequence[ParsedToolCall]) -> bool:
        closed = _END_OF_CALLS in self._tokenizer.decode(token_ids)
        return closed and bool(calls) and all(call.is_finished for call in calls)


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
