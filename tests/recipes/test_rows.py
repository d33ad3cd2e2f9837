"""Which kind a row is, what it asks, and every way in which it can be wrong."""

from __future__ import annotations

import pytest

from deepinfer.errors import RowError
from deepinfer.recipes.chat import convert
from deepinfer.recipes.rows import ChatPrompt, TextPrompt, TokenPrompt, parse_row, row_id

USER = [{"role": "user", "content": "hi"}]


IMAGE = {"type": "image_url", "image_url": {"url": "x"}}


def batch(url="/v1/chat/completions", **fields):
    return {"custom_id": "a", "method": "POST", "url": url, **fields}


@pytest.mark.parametrize(
    "row, kind, prompt_type",
    [
        ({"prompt": "hi"}, "prompt", ChatPrompt),
        ({"prompt": "hi", "raw": True}, "raw", TextPrompt),
        ({"prompt": "hi", "raw": False}, "prompt", ChatPrompt),
        ({"prompt_token_ids": [1, 2]}, "prompt_token_ids", TokenPrompt),
        ({"messages": USER}, "messages", ChatPrompt),
        ({"messages": USER, "prompt": None}, "messages", ChatPrompt),
        (batch(body={"messages": USER, "model": "m"}), "batch_chat", ChatPrompt),
        (batch("/v1/completions", body={"prompt": "x"}), "batch_completion", TextPrompt),
        (batch("/v1/completions", body={"prompt": ["x"]}), "batch_completion", TextPrompt),
        (batch("/v1/completions", body={"prompt": [3, 4]}), "batch_completion", TokenPrompt),
        (batch("/v1/completions", body={"prompt": [[3, 4]]}), "batch_completion", TokenPrompt),
    ],
)
def test_kinds(row, kind, prompt_type):
    parsed = parse_row(row, 0)
    assert (parsed.kind, type(parsed.prompt)) == (kind, prompt_type)


@pytest.mark.parametrize(
    "row, kind",
    [
        ([1], "invalid_type"),
        ("x", "invalid_type"),
        ({}, "unknown_kind"),
        ({"question": "hi"}, "unknown_kind"),
        ({"prompt": None}, "missing_field"),
        ({"prompt": 5}, "invalid_type"),
        ({"prompt": ["a", "b"]}, "invalid_type"),
        ({"prompt": ""}, "empty_prompt"),
        ({"prompt": "", "raw": True}, "empty_prompt"),
        ({"prompt": "a", "raw": "yes"}, "invalid_type"),
        ({"prompt": "a", "messages": USER}, "ambiguous_kind"),
        ({"prompt": "a", "prompt_token_ids": [1]}, "ambiguous_kind"),
        ({"prompt_token_ids": []}, "empty_prompt"),
        ({"prompt_token_ids": "12"}, "invalid_type"),
        ({"prompt_token_ids": [1, "2"]}, "invalid_type"),
        ({"prompt_token_ids": [True]}, "invalid_type"),
        ({"prompt_token_ids": [1.5]}, "invalid_type"),
        ({"messages": "hi"}, "invalid_type"),
        ({"messages": []}, "empty_prompt"),
        ({"messages": USER, "raw": True}, "invalid_value"),
        ({"prompt": "a", "thinking": "hard"}, "invalid_value"),
        ({"prompt": "a", "thinking": 3}, "invalid_type"),
        ({"prompt": "a", "functions": [{}]}, "unsupported"),
        ({"prompt": "a", "guided_json": {"type": "object"}}, "unsupported"),
        ({"prompt": "a", "raw": True, "response_format": {"type": "yaml"}}, "invalid_value"),
        (batch(), "missing_field"),
        (batch(body=[1]), "invalid_type"),
        (batch(body={}), "missing_field"),
        (batch(body={"messages": USER}, method="GET"), "invalid_value"),
        (batch(body={"messages": USER}, prompt="x"), "ambiguous_kind"),
        (batch("/v1/embeddings", body={"input": "x"}), "unknown_url"),
        (batch(["x"], body={"messages": USER}), "unknown_url"),
        ({"body": {"messages": USER}}, "missing_field"),
        (batch("/v1/completions", body={}), "missing_field"),
        (batch("/v1/completions", body={"prompt": ["a", "b"]}), "unsupported"),
        (batch("/v1/completions", body={"prompt": 3}), "invalid_type"),
        (batch("/v1/completions", body={"prompt": "a", "echo": True}), "unsupported"),
        (batch("/v1/completions", body={"prompt": "a", "suffix": "b"}), "unsupported"),
        (batch("/v1/completions", body={"prompt": "a", "best_of": 3}), "unsupported"),
    ],
)
def test_errors(row, kind):
    with pytest.raises(RowError) as caught:
        parse_row(row, 0)
    assert caught.value.kind == kind
    assert str(caught.value)


def test_an_unknown_kind_shows_the_fields_and_the_way_out():
    with pytest.raises(RowError, match="'question'.*--map prompt="):
        parse_row({"question": "x"}, 0)


@pytest.mark.parametrize(
    "row, expected",
    [
        ({"custom_id": "c", "id": "i"}, "c"),
        ({"id": "i"}, "i"),
        ({"id": 7}, "7"),
        ({"id": None}, "12"),
        ({"id": True}, "12"),
        ({"id": [1]}, "12"),
        ({"id": 7.0}, "7"),
        ({"id": 7.5}, "12"),
        ({"id": float("inf")}, "12"),
        ({"custom_id": 1.5, "id": "i"}, "i"),
        ({}, "12"),
        ("text", "12"),
    ],
)
def test_row_id(row, expected):
    assert row_id(row, 12) == expected


@pytest.mark.parametrize("wrong", [True, 7.5, [1], {"a": 1}])
def test_an_id_that_names_nothing_is_told(wrong):
    assert parse_row({"prompt": "a", "id": wrong, "x": 1}, 0).ignored == ("id", "x")
    line = batch(body={"messages": USER, "x": 1}) | {"custom_id": wrong, "y": 2}
    assert parse_row(line, 0).ignored == ("custom_id", "x", "y")
    assert parse_row({"prompt": "a", "id": None}, 0).ignored == ()


OFF = {"thinking": {"type": "disabled"}}
ON = {"thinking": {"type": "enabled"}}


@pytest.mark.parametrize(
    "row, flag, expected",
    [
        ({"prompt": "a"}, None, OFF),
        ({"prompt": "a"}, "default", ON),
        ({"prompt": "a"}, "low", {**ON, "reasoning_effort": "low"}),
        ({"prompt": "a", "thinking": "off"}, "max", OFF),
        ({"prompt": "a", "thinking": True}, None, ON),
        ({"prompt": "a", "thinking": False}, "max", OFF),
        ({"prompt": "a", "thinking": "max"}, None, {**ON, "reasoning_effort": "max"}),
        ({"prompt": "a", "reasoning_effort": "low"}, None, {"reasoning_effort": "low"}),
        ({"prompt": "a", "thinking": "low", "reasoning_effort": "max"}, None,
         {**ON, "reasoning_effort": "max"}),
        ({"messages": USER}, None, {}),
        ({"messages": USER}, "off", OFF),
        ({"messages": USER, "reasoning_effort": "low"}, "off", {"reasoning_effort": "low"}),
        ({"messages": USER, "thinking": {"type": "disabled"}}, "max", OFF),
    ],
)  # fmt: skip
def test_thinking_is_the_rows_own_then_the_runs_then_the_recipes(row, flag, expected):
    body = parse_row(row, 0, thinking=flag).prompt.body
    assert {k: v for k, v in body.items() if k != "messages"} == expected


def test_the_raw_default_holds_for_string_prompts_only():
    assert parse_row({"prompt": "a"}, 0, raw=True).kind == "raw"
    assert parse_row({"prompt": "a", "raw": False}, 0, raw=True).kind == "prompt"
    assert parse_row({"messages": USER}, 0, raw=True).kind == "messages"


def test_a_text_format_is_no_constraint():
    for form in (None, "text", {"type": "text", "json_schema": None}):
        assert parse_row({"prompt": "a", "raw": True, "response_format": form}, 0).ignored == ()


def test_the_recipe_gets_fields_in_one_order():
    """It names the first mistake it meets: in every process the same, however a row is written."""
    given = {"tool_choice": 3, "thinking": "off", "tools": [{}], "messages": USER}
    body = parse_row(given, 0).prompt.body
    assert list(body)[:3] == ["messages", "tools", "tool_choice"]


def test_fields_without_meaning_are_reported():
    row = {"prompt": "a", "topic": 1, "temprature": 0.5, "temperature": 0.5, "user": "u", "z": None}
    assert parse_row(row, 0).ignored == ("topic", "temprature")
    assert parse_row({"prompt": "a", "raw": True, "tools": []}, 0).ignored == ("tools",)
    assert parse_row({"messages": USER, "echo": True}, 0).ignored == ("echo",)


@pytest.mark.parametrize(
    "field, value, message",
    [
        ("tools", 5, "tools: invalid type: integer `5`"),
        ("reasoning_effort", "x", "reasoning_effort: unknown variant `x`"),
        ("messages", [{"role": "user"}], "messages: missing field `content`"),
        ("messages", [{"role": "user", "content": [IMAGE]}], "messages[0]: Unsupported image_url"),
        ("thinking", {}, "thinking: missing field `type`"),
        ("response_format", float("inf"), "response_format: not a JSON value: "),
    ],
)
def test_a_field_that_the_recipe_refuses_is_named(field, value, message):
    """The official messages do not say which field they are about."""
    with pytest.raises(RowError) as caught:
        convert({"messages": USER, field: value})
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    "value, words",
    [(None, "null"), (True, "true"), ({}, "an object"), ("5", "a string"), ([1], "a list")],
)
def test_a_wrong_type_is_told_in_the_words_of_json(value, words):
    with pytest.raises(RowError, match=f"stop_token_ids: expected .*, got {words}$"):
        parse_row({"prompt": "hi", "stop_token_ids": [value]}, 1)


def test_a_call_that_thinking_excludes_is_told_how_to_be_had():
    """``messages`` think by default, and the official recipe then refuses to require a call."""
    tool = {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}
    required = {"messages": USER, "tools": [tool], "tool_choice": "required"}
    with pytest.raises(
        RowError, match='tool_choice: .*; set "thinking": "off" in the row, or give'
    ):
        convert(required)
    convert({**required, "thinking": {"type": "disabled"}})
