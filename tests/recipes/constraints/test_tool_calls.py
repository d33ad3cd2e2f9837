"""Calls drawn through the masks parse with the official parser and meet the tools' schemas."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from deepinfer.errors import RowError
from deepinfer.recipes.constraints.compiler import ConstraintCompiler
from deepinfer.recipes.constraints.spec import ConstraintSpec, from_recipe
from deepinfer.recipes.constraints.validate import judge
from deepinfer.recipes.parsing import AnswerParser
from deepinfer.recipes.tokenizer import Tokenizer
from deepinfer.recipes.types import Answer, AnswerFormat, ParsedToolCall

M = "｜DSML｜"
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "unit": {"type": "string", "enum": ["celsius", "kelvin", 'a"b<</c']},
        "note": {"type": ["string", "null"], "maxLength": 6},
        "code": {"type": "string", "minLength": 2, "maxLength": 4},
        "day": {"type": "string", "format": "date"},
        "place": {"$ref": "#/$defs/place"},
    },
    "required": ["city", "days", "unit", "code", "day", "place"],
    "additionalProperties": False,
    "$defs": {
        "place": {
            "type": "object",
            "properties": {"x": {"type": "number"}},
            "required": ["x"],
            "additionalProperties": False,
        }
    },
}


def _tool(name: str, parameters: dict | None, strict: bool | None) -> dict:
    return {
        "type": "function",
        "function": {"name": name, "parameters": parameters, "strict": strict},
    }


STRICT = [_tool("weather", WEATHER, True), _tool("now", {"type": "object", "properties": {}}, True)]
FREE = [_tool("search", {"type": "object"}, None), _tool("wéather.v2", None, None)]


def _required(tools: list[dict]) -> ConstraintSpec:
    return ConstraintSpec("tool_call_required", json.dumps(tools))


def _answer(tokenizer: Tokenizer, tokens: list[int], *, in_calls: bool) -> Answer:
    answer_format = AnswerFormat(is_chat=True, has_tools=True, starts_in_tool_calls=in_calls)
    return AnswerParser(tokenizer).parse(tokens, answer_format)


@pytest.mark.parametrize("tools", [STRICT, FREE], ids=["strict", "free"])
def test_required_calls_parse_and_validate(
    compiler: ConstraintCompiler,
    tokenizer_of: Callable[[ConstraintCompiler], Tokenizer],
    walk: Callable,
    tools: list[dict],
) -> None:
    tokenizer = tokenizer_of(compiler)
    constraint = _required(tools)
    compiled = compiler.compile(constraint)
    names = {tool["function"]["name"] for tool in tools}
    num_finished = 0
    for seed in range(12):
        tokens = walk(compiler, compiled.new_matcher(), seed, max_tokens=800)
        if tokens is None:
            continue
        num_finished += 1
        answer = _answer(tokenizer, tokens, in_calls=True)
        text = tokenizer.decode(tokens)
        assert answer.tool_calls, text
        assert {call.name for call in answer.tool_calls} <= names, text
        assert judge(constraint, answer, "stop") == "valid", text
    assert num_finished >= 3


def test_strict_tools_leave_text_free(
    v4_compiler: ConstraintCompiler, v4: Tokenizer, walk: Callable
) -> None:
    constraint = from_recipe("tool_call", json.dumps(STRICT))
    assert constraint
    compiled = v4_compiler.compile(constraint)
    opening = v4.encode_with_control(f"Let me look.\n\n<{M} calls>\n")
    for seed in range(5):
        text_only = walk(v4_compiler, compiled.new_matcher(), seed)
        if text_only is not None and v4.tool_marker_id not in text_only:
            answer = _answer(v4, text_only, in_calls=False)
            assert answer.content == v4.decode(text_only)
            assert judge(constraint, answer, "stop") == "valid"
        matcher = compiled.new_matcher()
        for token_id in opening:
            matcher.push(token_id)
        rest = walk(v4_compiler, matcher, seed, max_tokens=800)
        if rest is None:
            continue
        answer = _answer(v4, [*opening, *rest], in_calls=False)
        assert answer.content == "Let me look."
        assert answer.tool_calls
        assert judge(constraint, answer, "stop") == "valid"


def _call(name: str, *parameters: str) -> str:
    inside = "".join(f"<{M} parameter {parameter}</{M} parameter>\n" for parameter in parameters)
    return f'<{M} invoke name="{name}">\n{inside}</{M} invoke>\n'


ONE = [
    _tool(
        "f",
        {
            "type": "object",
            "properties": {"s": {"type": "string"}, "n": {"type": "integer"}},
            "required": ["s"],
            "additionalProperties": False,
        },
        True,
    )
]


@pytest.mark.parametrize(
    "text, is_allowed",
    [
        (_call("f", 's" string="true">x'), False),  # the attribute's name is spoilt
        (_call("f", 'name="s" string="true">x'), True),
        (_call("f", 'name="s" string="true">'), True),
        (_call("f", 'name="s" string="true">a </b> < </ \n "\\'), True),
        (_call("f", 'name="s" string="true">x', 'name="n" string="false">12'), True),
        (_call("f", 'name="s" string="true">x', 'name="n" string="true">12'), False),
        (_call("f", 'name="s" string="true">x', 'name="n" string="false">1.5'), False),
        (_call("f", 'name="n" string="false">12'), False),
        (_call("f", 'name="s" string="true">x', 'name="s" string="true">x'), False),
        (_call("f", 'name="s" string="true">x', 'name="z" string="true">x'), False),
        (_call("g", 'name="s" string="true">x'), False),
        (_call("f", 'name="s" string="true">x') * 3, True),
        ("", False),
    ],
)
def test_what_a_strict_call_may_be(
    v4_compiler: ConstraintCompiler, v4: Tokenizer, text: str, is_allowed: bool
) -> None:
    matcher = v4_compiler.compile(_required(ONE)).new_matcher()
    tokens = v4.encode_with_control(f"{text}</{M} calls>")
    try:
        for token_id in tokens:
            matcher.push(token_id)
    except ValueError:
        assert not is_allowed
    else:
        assert is_allowed
        assert matcher.is_finished
        answer = _answer(v4, tokens, in_calls=True)
        assert judge(_required(ONE), answer, "stop") == "valid"


def test_marker_cannot_be_spelt_in_a_value(v4_compiler: ConstraintCompiler, v4: Tokenizer) -> None:
    matcher = v4_compiler.compile(_required(ONE)).new_matcher()
    opening = f'<{M} invoke name="f">\n<{M} parameter name="s" string="true">'
    for token_id in v4.encode_with_control(opening):
        matcher.push(token_id)
    with pytest.raises(ValueError, match="not allowed"):
        for token_id in v4.encode_plain(f"a </{M} parameter>"):
            matcher.push(token_id)


@pytest.mark.parametrize(
    "parameters, kind, words",
    [
        ({"type": "array"}, "invalid_schema", "type object"),
        ({"type": "object", "minProperties": 1}, "unsupported_keyword", "'minProperties'"),
        ({"type": "object", "additionalProperties": True}, "unsupported_keyword", "must be false"),
        ({"properties": {"a": {"not": {}}}}, "unsupported_keyword", "'not'"),
        ({"properties": {}, "required": ["z"]}, "invalid_schema", "'z' has no schema"),
        ({"properties": {}, "required": [*"zyxwv"]}, "invalid_schema", "'z' has no schema"),
        ({"properties": {'a"b': {}}}, "invalid_schema", "cannot occur in a tool call"),
        ({"properties": {"a b": {}}}, "invalid_schema", "cannot occur in a tool call"),
    ],
)
def test_unfit_tools_are_refused_by_name(
    golden_compiler: ConstraintCompiler, parameters: dict, kind: str, words: str
) -> None:
    with pytest.raises(RowError) as caught:
        golden_compiler.compile(_required([_tool("broken", parameters, True)]))
    assert caught.value.kind == kind
    assert words in str(caught.value)
    assert "broken" in str(caught.value)


@pytest.mark.parametrize(
    "call, verdict",
    [
        (ParsedToolCall(name="f", arguments='{"s": "x"}', is_finished=True), "valid"),
        (ParsedToolCall(name="f", arguments='{"s": "x"}', is_finished=False), "invalid"),
        (ParsedToolCall(name="g", arguments='{"s": "x"}', is_finished=True), "invalid"),
        (ParsedToolCall(name="f", arguments='{"s": 1}', is_finished=True), "invalid"),
        (ParsedToolCall(name="f", arguments='{"s": "x", "y": 1}', is_finished=True), "invalid"),
        (ParsedToolCall(name="f", arguments='["s"]', is_finished=True), "invalid"),
        (ParsedToolCall(name="f", arguments='{"s": "x"', is_finished=True), "invalid"),
    ],
)
def test_verdict_on_a_call(call: ParsedToolCall, verdict: str) -> None:
    assert judge(_required(ONE), Answer(content="", tool_calls=(call,)), "tool_calls") == verdict


def test_verdict_without_a_call() -> None:
    nothing = Answer(content="text")
    assert judge(_required(ONE), nothing, "stop") == "invalid"
    assert judge(ConstraintSpec("tool_call", json.dumps(ONE)), nothing, "stop") == "valid"
