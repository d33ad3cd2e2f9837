"""Answers: content, reasoning and tool calls apart, unfinished parts flagged."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.recipes.encoding import RowEncoder
from deepinfer.recipes.parsing import AnswerParser
from deepinfer.recipes.types import AnswerFormat

PLAIN = AnswerFormat()
CHAT = AnswerFormat(is_chat=True)
THINKING = AnswerFormat(is_chat=True, thinking_stage="reasoning_start")
TOOLS = AnswerFormat(is_chat=True, has_tools=True)
TOOL = {"type": "function", "function": {"name": "f"}}


def call(**arguments):
    values = "".join(
        f'<｜DSML｜ parameter name="{name}" string="{str(isinstance(value, str)).lower()}">'
        f"{value if isinstance(value, str) else json.dumps(value)}</｜DSML｜ parameter>\n"
        for name, value in arguments.items()
    )
    return f'<｜DSML｜ invoke name="f">\n{values}</｜DSML｜ invoke>\n'


def block(*calls):
    return "\n\n<｜DSML｜ calls>\n" + "".join(calls) + "</｜DSML｜ calls>"


def parse(tokenizer, parser, text, form):
    return parser.parse(tokenizer.encode_with_control(text), form)


@pytest.mark.parametrize(
    "text, form, content, reasoning",
    [
        ("Hello 🙂\n", PLAIN, "Hello 🙂\n", None),
        ("\n\nHello", PLAIN, "\n\nHello", None),
        ("a</think>b", PLAIN, "a</think>b", None),
        ("\n\nHello\n", CHAT, "Hello\n", None),
        ("\nhmm\n</think>\n\nHello", THINKING, "Hello", "hmm"),
        ("</think>Hello", THINKING, "Hello", ""),
        ("", THINKING, "", ""),
        ("", CHAT, "", None),
    ],
)
def test_parts(tokenizer, parser, text, form, content, reasoning):
    answer = parse(tokenizer, parser, text, form)
    assert (answer.content, answer.reasoning or "") == (content, reasoning or "")
    assert answer.tool_calls == ()


def test_reasoning_that_never_ended(tokenizer, parser):
    answer = parse(tokenizer, parser, "let me see", THINKING)
    assert (answer.content, answer.reasoning) == ("", "let me see")
    assert answer.is_reasoning_unfinished
    assert answer.num_reasoning_tokens == len(tokenizer.encode_with_control("let me see"))
    assert not parse(tokenizer, parser, "a</think>b", THINKING).is_reasoning_unfinished
    assert not parse(tokenizer, parser, "b", CHAT).is_reasoning_unfinished


def test_tool_calls(tokenizer, parser):
    text = "I look." + block(call(city="Paris", days=3), call())
    answer = parse(tokenizer, parser, text, TOOLS)
    assert answer.content == "I look."
    assert [c.name for c in answer.tool_calls] == ["f", "f"]
    assert json.loads(answer.tool_calls[0].arguments) == {"city": "Paris", "days": 3}
    assert not answer.is_tool_call_unfinished


def test_a_tool_call_cut_anywhere_is_flagged(tiny):
    parser = AnswerParser(tiny)
    token_ids = tiny.encode_with_control("Go" + block(call(city="Paris", days=3)))
    marker = token_ids.index(tiny.tool_marker_id)
    for length in range(marker + 1, len(token_ids)):
        assert parser.parse(token_ids[:length], TOOLS).is_tool_call_unfinished, length
    assert not parser.parse(token_ids, TOOLS).is_tool_call_unfinished


def test_tool_markup_without_tools_is_text(tokenizer, parser):
    text = "I look." + block(call(city="Paris"))
    answer = parse(tokenizer, parser, text, CHAT)
    assert answer.content == text
    assert not answer.is_tool_call_unfinished


def test_the_markup_is_what_the_official_prompt_shows(tiny):
    """A call in the history is rendered with the same markup that answers are parsed for."""
    history = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "", "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}]},
        {"role": "tool", "tool_call_id": "1", "content": "r"},
    ]  # fmt: skip
    encoder = RowEncoder(tiny, max_model_len=4096, vocab_size=tiny.size)
    row = encoder.encode(0, {"messages": history, "tools": [TOOL], "thinking": "off"})
    assert block(call(a=1)) in tiny.decode(row.prompt_token_ids)


@settings(max_examples=200)
@given(data=st.data())
def test_any_ids_parse(tiny, data):
    special = [tiny.think_end_id, tiny.tool_marker_id, tiny.eos_id, tiny.bos_id]
    token = st.integers(0, tiny.size + 3) | st.sampled_from(special)
    token_ids = data.draw(st.lists(token, max_size=25))
    form = data.draw(st.sampled_from([PLAIN, CHAT, THINKING, TOOLS]))
    answer = AnswerParser(tiny).parse(token_ids, form)
    said = answer.content + (answer.reasoning or "")
    assert said.encode().decode() == said and len(said) <= len(tiny.decode(token_ids))


@given(data=st.data())
def test_a_chat_answer_is_its_text_without_leading_newlines(tiny, data):
    text = st.sampled_from([i for i in range(tiny.size) if i not in tiny.control_ids])
    token_ids = data.draw(st.lists(text, max_size=30))
    answer = AnswerParser(tiny).parse(token_ids, CHAT)
    assert answer.content == tiny.decode(token_ids).lstrip("\n")
