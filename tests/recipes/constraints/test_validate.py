"""Verdicts on finished answers."""

from __future__ import annotations

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
