"""What the official recipe rewrites keeps every keyword of the row."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deepinfer.errors import RowError
from deepinfer.recipes.chat import constraint, convert
from deepinfer.recipes.constraints.spec import ConstraintSpec

_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "word": {"type": "string", "maxLength": 6, "pattern": "^a"},
        "list": {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 2},
        "either": {"anyOf": [{"type": "string", "maxLength": 2}, {"type": "null"}]},
        "inner": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"],
                  "additionalProperties": False},
        "ref": {"$ref": "#/$defs/short"},
    },
    "required": ["word", "list", "either", "inner", "ref"],
    "$defs": {"short": {"type": "string", "minLength": 3}},
    "additionalProperties": False,
}  # fmt: skip


def _constraint(**fields: Any) -> ConstraintSpec:
    body = {"messages": [{"role": "user", "content": "x"}], **fields}
    body["thinking"] = {"type": "disabled"}
    found = constraint(convert(body), body)
    assert found is not None
    return found


def _tool(name: str, *, strict: bool, parameters: dict[str, Any] = _SCHEMA) -> dict[str, Any]:
    function = {"name": name, "strict": strict, "parameters": parameters}
    return {"type": "function", "function": function}


@pytest.mark.parametrize("strict", [False, True])
def test_schemas_keep_every_keyword(strict: bool) -> None:
    form = {"name": "x", "strict": strict, "schema": _SCHEMA}
    spec = _constraint(response_format={"type": "json_schema", "json_schema": form})
    assert spec.kind == "json_schema"
    assert json.dumps(json.loads(spec.text)) == json.dumps(_SCHEMA)  # in the same order


@pytest.mark.parametrize(
    "choice, strict", [("auto", True), ("required", True), ("required", False)]
)
def test_tools_keep_every_keyword(choice: str, strict: bool) -> None:
    tools = [_tool("one", strict=strict), _tool("two", strict=strict)]
    spec = _constraint(tools=tools, tool_choice=choice)
    assert spec.kind == ("tool_call" if choice == "auto" else "tool_call_required")
    for tool, wanted in zip(json.loads(spec.text), tools, strict=True):
        assert json.dumps(tool["function"]) == json.dumps(
            {**wanted["function"], "description": None}
        )


def test_a_named_tool_is_the_only_one() -> None:
    tools = [_tool("one", strict=True), _tool("two", strict=True)]
    choice = {"type": "function", "function": {"name": "two"}}
    spec = _constraint(tools=tools, tool_choice=choice)
    assert spec.kind == "tool_call_required"
    assert [tool["function"]["name"] for tool in json.loads(spec.text)] == ["two"]


def test_strict_objects_are_closed_as_the_recipe_closes_them() -> None:
    open_inside = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}}
    open_inside["required"] = ["n"]
    (tool,) = json.loads(_constraint(tools=[_tool("f", strict=True, parameters=open_inside)]).text)
    assert tool["function"]["parameters"] == {**open_inside, "additionalProperties": False}


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(RowError):
        _constraint(tools=[_tool("f", strict=True), _tool("f", strict=True)])


_CALL_WANTED = "tool_choice asks for a call"
_ONE_ONLY = "response_format cannot be combined with tools"
_NULL = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "null"}}}


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"tool_choice": "required"}, _CALL_WANTED),
        ({"tool_choice": "required", "tools": []}, _CALL_WANTED),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, _CALL_WANTED),
        ({"response_format": _NULL, "tools": [_tool("f", strict=False)]}, _ONE_ONLY),
        ({"response_format": _NULL, "tools": [_tool("f", strict=True)]}, "response_format"),
    ],
)
def test_what_the_recipe_would_drop_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(RowError, match=words) as caught:
        _constraint(**fields)
    assert caught.value.kind == "invalid_value"


def test_tools_that_are_not_to_be_called_do_not_hide_the_form() -> None:
    form = {"response_format": {"type": "text"}, "tool_choice": "required"}
    assert _constraint(tools=[_tool("f", strict=False)], **form).kind == "tool_call_required"


def test_numbers_are_those_of_the_row() -> None:
    schema = {"const": 12345678901234567890123}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    assert json.loads(_constraint(response_format=form).text) == schema
