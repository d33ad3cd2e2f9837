"""Verdicts on finished answers."""

from __future__ import annotations

import json

import pytest

from deepinfer.recipes.constraints import spec
from deepinfer.recipes.constraints.validate import judge
from deepinfer.recipes.types import Answer

INTEGER = spec.json_schema({"type": "integer", "maximum": 9})


@pytest.mark.parametrize(
    "constraint, content, verdict",
    [
        (INTEGER, "7", "valid"),
        (INTEGER, " 7\n", "valid"),
        (INTEGER, "70", "invalid"),
        (INTEGER, "", "invalid"),
        (INTEGER, "7 apples", "invalid"),
        (INTEGER, "NaN", "invalid"),
        (spec.json_schema({"type": "number", "multipleOf": 0.01}), "0.07", "valid"),
        (spec.json_schema({"type": "number", "multipleOf": 0.01}), "0.075", "invalid"),
        (spec.json_schema({"type": "number", "multipleOf": 0.01}), "3" * 90 + ".29", "valid"),
        (spec.json_schema({"type": "number", "multipleOf": 0.01}), "1e-999999999", "valid"),
        (spec.json_schema({"type": "number", "maximum": 1}), "1e999999999", "invalid"),
        (spec.json_schema({"enum": [1.5]}), "1.5", "valid"),
        (spec.json_schema({"type": "integer"}), "2.0", "valid"),
        (spec.json_schema({"type": "string", "format": "ipv4"}), '"1.2.3.4"', "valid"),
        (spec.json_schema({"type": "string", "format": "ipv4"}), '"1.2.3"', "invalid"),
        (spec.any_json_object(), '{"a": [1]}', "valid"),
        (spec.any_json_object(), "[1]", "invalid"),
        (spec.any_json_object(), "[" * 50_000, "invalid"),
        (spec.regex("a+b?"), "aab", "valid"),
        (spec.regex("a+b?"), "aabb", "invalid"),
        (spec.regex("a+b?"), "", "invalid"),
        (spec.regex("é|\\d"), "é", "valid"),
        (spec.regex("é|\\d"), "٣", "invalid"),
        (spec.regex("a/b\nc"), "a/b\nc", "valid"),
        (spec.regex(r"a\\/\/b"), r"a\//b", "valid"),
        (spec.regex("^ab$"), "ab", "valid"),
        (spec.lark('start: "(" start ")" | "x"'), "((x))", "valid"),
        (spec.lark('start: "(" start ")" | "x"'), "((x)", "invalid"),
        (spec.gbnf('root ::= "(" root ")" | [a-c]'), "((b))", "valid"),
        (spec.gbnf('root ::= "(" root ")" | [a-c]'), "((d))", "invalid"),
    ],
)
def test_content(constraint: spec.ConstraintSpec, content: str, verdict: str) -> None:
    assert judge(constraint, Answer(content=content), "stop") == verdict


@pytest.mark.parametrize("finish_reason", ["length", "error"])
def test_cut_answers_are_never_valid(finish_reason: str) -> None:
    assert judge(INTEGER, Answer(content="7"), finish_reason) == "incomplete"


def test_unfinished_reasoning_is_never_valid() -> None:
    answer = Answer(content="", reasoning="7", is_reasoning_unfinished=True)
    assert judge(INTEGER, answer, "stop") == "incomplete"
    answer = Answer(content="7", is_tool_call_unfinished=True)
    assert judge(INTEGER, answer, "stop") == "incomplete"


HOSTILE = "^(a|a)*a{30}b$"  # Python's own search tries two ways for each letter


@pytest.mark.parametrize(
    "schema, good, bad",
    [
        ({"type": "string", "pattern": HOSTILE}, '"' + "a" * 45 + 'b"', '"' + "a" * 45 + 'c"'),
        (
            {"type": "object", "patternProperties": {HOSTILE: {"type": "integer"}},
             "additionalProperties": False},
            '{"' + "a" * 45 + 'b": 1}',
            '{"' + "a" * 45 + 'c": 1}',
        ),
        (
            {"type": "object", "patternProperties": {"^x": {"type": "integer"}},
             "properties": {"y": {}}, "additionalProperties": {"type": "string"}},
            '{"x1": 1, "y": 2, "z": "3"}',
            '{"x1": 1, "y": 2, "z": 3}',
        ),
        ({"type": "string", "pattern": "b+c"}, '"abbcd"', '"abbd"'),
        ({"type": "string", "pattern": "^\\d$"}, '"7"', '"7\\n"'),
        ({"pattern": "^a"}, "7", '"b"'),
        ({"type": "string", "pattern": "^[^x]*$"}, r'"\u0001\u007f\t\"\\/é\u2028😀"', '"axb"'),
    ],
)  # fmt: skip
def test_patterns_are_judged_in_time_that_grows_with_the_text(
    schema: dict, good: str, bad: str
) -> None:
    constraint = spec.json_schema(schema)
    assert judge(constraint, Answer(content=good), "stop") == "valid"
    assert judge(constraint, Answer(content=bad), "stop") == "invalid"


TREE = spec.json_schema(
    {
        "$defs": {"tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
        "$ref": "#/$defs/tree",
    }
)


@pytest.mark.parametrize("depth", [10, 200, 900, 5_000])
def test_answers_deeper_than_the_stack(depth: int) -> None:
    """The masks allow them, so a model may write them."""
    whole = "[" * depth + "]" * depth
    assert judge(TREE, Answer(content=whole), "stop") == "valid"
    assert judge(TREE, Answer(content=whole[:-1]), "stop") == "invalid"
    anything = f'{{"a": {whole}}}'
    assert judge(spec.any_json_object(), Answer(content=anything), "stop") == "valid"


def test_answers_longer_than_a_constraint_may_be() -> None:
    text = json.dumps(["x" * 100] * 5_000)
    assert len(text) > spec.MAX_TEXT_CHARS
    constraint = spec.json_schema({"type": "array", "items": {"type": "string"}})
    assert judge(constraint, Answer(content=text), "stop") == "valid"
