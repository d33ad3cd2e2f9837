"""Fields that say what an answer must be: enforced or refused wherever they stand."""

from __future__ import annotations

from typing import Any

import pytest

from deepinfer.errors import RowError
from deepinfer.recipes.embedded import embedded_model_path
from deepinfer.recipes.encoding import RowEncoder
from deepinfer.recipes.rows import parse_row
from deepinfer.recipes.tokenizer import Tokenizer

_USER = [{"role": "user", "content": "hi"}]
_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
_STRICT = {
    "type": "function",
    "function": {
        "name": "f",
        "strict": True,
        "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
    },
}
_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
_LINE = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions"}

# How people say it here, to the official API, and to other tools.
_FORMS: list[dict[str, Any]] = [
    {"regex": "a|b"},
    {"grammar": 'root ::= "a"'},
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "json_schema", "json_schema": {"schema": _SCHEMA, "name": "x"}}},
    {"tools": [_STRICT]},
    {"tools": [_TOOL], "tool_choice": "required"},
    {"tools": [_TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}},
    {"tool_choice": "required"},
    {"functions": [_TOOL["function"]], "function_call": {"name": "f"}},
    {"guided_json": _SCHEMA},
    {"guided_json": {}},
    {"guided_regex": "a|b"},
    {"guided_choice": ["a", "b"]},
    {"guided_grammar": 'root ::= "a"'},
    {"structured_outputs": {"regex": "a|b"}},
    {"structural_tag": "{}"},
    {"json_schema": "{}"},
    {"ebnf": 'root ::= "a"'},
    {"extra_body": {"guided_json": _SCHEMA}},
]


def _rows(form: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The form in each place where somebody may put it."""
    thinking = {"thinking": "off"}
    completions = {**_LINE, "url": "/v1/completions"}
    return {
        "prompt": {"prompt": "x", **form},
        "raw": {"prompt": "x", "raw": True, **form},
        "ids": {"prompt_token_ids": [5, 6], **form},
        "messages": {"messages": _USER, **thinking, **form},
        "body": {**_LINE, "body": {"messages": _USER, **thinking, **form}},
        "beside a body": {**_LINE, "body": {"messages": _USER, **thinking}, **form},
        "completion": {**completions, "body": {"prompt": "x", **form}},
        "completion of ids": {**completions, "body": {"prompt": [5, 6], **form}},
        "beside a completion": {**completions, "body": {"prompt": "x"}, **form},
    }


@pytest.fixture(scope="module")
def encoder() -> RowEncoder:
    tokenizer = Tokenizer.from_file(embedded_model_path() / "tokenizer.json")
    return RowEncoder(tokenizer, max_model_len=8192, vocab_size=tokenizer.size)


@pytest.mark.parametrize("form", _FORMS, ids=lambda form: "+".join(form))
def test_no_constraint_is_dropped(encoder: RowEncoder, form: dict[str, Any]) -> None:
    num_enforced = 0
    for place, row in _rows(form).items():
        try:
            assert encoder.encode(0, row).constraint is not None, place
            num_enforced += 1
        except RowError as error:
            assert any(name in str(error) for name in (*form, "tools")), (place, str(error))
    ours = {"regex", "grammar", "response_format", "tools"}
    assert (num_enforced > 0) == bool(ours & form.keys())


@pytest.mark.parametrize("form", _FORMS, ids=lambda form: "+".join(form))
def test_a_field_that_is_not_set_asks_nothing(encoder: RowEncoder, form: dict[str, Any]) -> None:
    for place, row in _rows(dict.fromkeys(form)).items():
        assert encoder.encode(0, row).constraint is None, place


@pytest.mark.parametrize("name", ["guided_json", "guided_choice", "ebnf", "extra_body"])
def test_a_name_of_another_tool_is_told_ours(name: str) -> None:
    with pytest.raises(RowError, match=f"{name} is not supported; use "):
        parse_row({"prompt": "x", name: {"a": 1}}, 0)


def test_what_stands_beside_a_body_is_named() -> None:
    row = {**_LINE, "body": {"messages": _USER, "colour": "red"}, "max_tokens": 3, "user": "me"}
    assert parse_row(row, 0).ignored == ("colour", "max_tokens")
    with pytest.raises(RowError, match="regex is outside the body of a batch line; move it"):
        parse_row({**row, "regex": "a"}, 0)


def test_tools_that_bind_nothing_are_named_where_they_have_no_effect() -> None:
    row = {"prompt": "x", "raw": True, "tools": [_TOOL, 5, {"function": 3}], "tool_choice": "auto"}
    assert parse_row(row, 0).ignored == ("tools", "tool_choice")
