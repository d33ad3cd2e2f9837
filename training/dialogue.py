"""Conversations as training documents: the prompt as the recipe encodes it, followed by the answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from deepseek_recipe import ChatCompletionRequest, ConversionOptions, DeepseekV41Encoding
from deepseek_recipe import Tokenizer as RecipeTokenizer
from tokenizers import Tokenizer

MODEL_NAME = "DeepSeek-V4.1-Flash"
END_OF_TURN = "<｜end▁of▁sentence｜>"
BEGIN = "<｜begin▁of▁sentence｜>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One tool call of an answer."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The model's turn."""

    content: str
    reasoning: str = ""
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialogue:
    """``messages``: the history before the answer.  ``effort``: None without thinking."""

    messages: Sequence[Mapping[str, Any]]
    answer: Answer
    effort: str | None = None
    tools: tuple[Mapping[str, Any], ...] = ()
    response_format: Mapping[str, Any] | None = None
    tool_choice: str | None = field(default=None)


def request_body(dialogue: Dialogue) -> dict[str, Any]:
    """The chat completion request that asks for the answer."""
    body: dict[str, Any] = {"model": MODEL_NAME, "messages": list(dialogue.messages)}
    if dialogue.effort is None:
        body["thinking"] = {"type": "disabled"}
    elif dialogue.effort != "default":
        body["reasoning_effort"] = dialogue.effort
    if dialogue.tools:
        body["tools"] = list(dialogue.tools)
    if dialogue.tool_choice:
        body["tool_choice"] = dialogue.tool_choice
    if dialogue.response_format:
        body["response_format"] = dialogue.response_format
    return body


def calls_text(calls: Sequence[Call]) -> str:
    """The DSML block of some tool calls, as the recipe renders it in later turns."""
    lines = ["<｜DSML｜ calls>"]
    for call in calls:
        lines.append(f'<｜DSML｜ invoke name="{call.name}">')
        for key, value in call.arguments.items():
            plain = isinstance(value, str)
            shown = value if plain else json.dumps(value)
            kind = "true" if plain else "false"
            lines.append(
                f'<｜DSML｜ parameter name="{key}" string="{kind}">{shown}</｜DSML｜ parameter>'
            )
        lines.append("</｜DSML｜ invoke>")
    return "\n".join([*lines, "</｜DSML｜ calls>"])


def answer_text(dialogue: Dialogue) -> str:
    """The text after the prompt, including the end-of-turn token."""
    answer = dialogue.answer
    text = f"{answer.reasoning}</think>" if dialogue.effort is not None else ""
    text += answer.content
    if dialogue.tool_choice == "required":
        block = calls_text(answer.calls)
        return text + block.removeprefix("<｜DSML｜ calls>\n") + END_OF_TURN
    if answer.calls:
        text += "\n\n" + calls_text(answer.calls)
    return text + END_OF_TURN


def assistant_message(answer: Answer, call_ids: Sequence[str] = ()) -> dict[str, Any]:
    """An answer as a message of the history."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.content}
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.calls:
        message["tool_calls"] = [
            {"id": call_id, "type": "function",
             "function": {"name": call.name, "arguments": json.dumps(call.arguments)}}
            for call_id, call in zip(call_ids, answer.calls, strict=True)
        ]  # fmt: skip
    return message


class PromptRenderer:
    """Renders prompts as text, including control tokens."""

    def __init__(self) -> None:
        self._encoding, self._options = DeepseekV41Encoding(), ConversionOptions()

    def prompt_text(self, dialogue: Dialogue) -> str:
        request = ChatCompletionRequest(request_body(dialogue)).convert(self._options)
        return str(self._encoding.render_conversation(request.conversation).prompt)


class DocumentEncoder:
    """Encodes text and dialogues as token ids, each document from BOS to EOS."""

    def __init__(self, tokenizer_path: str) -> None:
        self._tokenizer = Tokenizer.from_file(tokenizer_path)
        recipe_tokenizer = RecipeTokenizer.from_file(tokenizer_path)
        self._encoding = DeepseekV41Encoding().with_tokenizer(recipe_tokenizer)
        self._options = ConversionOptions()

    def dialogue(self, dialogue: Dialogue) -> list[int]:
        request = ChatCompletionRequest(request_body(dialogue)).convert(self._options)
        prompt = self._encoding.encode(request.conversation)
        return [*prompt, *self._tokenizer.encode(answer_text(dialogue)).ids]

    def text(self, text: str) -> list[int]:
        return self._tokenizer.encode(f"{BEGIN}{text}{END_OF_TURN}").ids
