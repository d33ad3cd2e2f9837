"""Specs: equal constraints are equal, and bad ones are refused by name."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.errors import RowError
from deepinfer.recipes.constraints import spec

_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.text(max_size=5), _json))
def test_spelling_of_json_does_not_matter(schema: dict) -> None:
    spellings = {
        spec.json_schema(schema),
        spec.json_schema(json.dumps(schema)),
        spec.json_schema(json.dumps(schema, indent=2, ensure_ascii=False)),
    }
    assert len(spellings) == 1
    assert len({one.digest for one in spellings}) == 1


def test_order_of_keys_matters_because_answers_follow_it() -> None:
    one = spec.json_schema('{"properties": {"a": {}, "b": {}}}')
    other = spec.json_schema('{"properties": {"b": {}, "a": {}}}')
    assert one != other
    assert one.digest != other.digest


def test_kind_is_part_of_the_digest() -> None:
    assert spec.regex("x").digest != spec.lark("x").digest


@pytest.mark.parametrize(
    "make, kind, words",
    [
        (lambda: spec.json_schema('{"a": }'), "invalid_schema", "line 1, column 7"),
        (lambda: spec.json_schema('{"a": NaN}'), "invalid_schema", "NaN"),
        (lambda: spec.json_schema("[1]"), "invalid_schema", "expected an object or a boolean"),
        (lambda: spec.json_schema({"a": {1, 2}}), "invalid_schema", "not JSON"),
        (lambda: spec.json_schema({"a": float("inf")}), "invalid_schema", "not JSON"),
        (lambda: spec.json_schema("[" * 100_000), "constraint_too_complex", "nested too deeply"),
        (lambda: spec.json_schema({"enum": ["x" * 300_000]}), "constraint_too_complex", "limit"),
        (lambda: spec.regex("a" * 300_000), "constraint_too_complex", "limit"),
        (lambda: spec.gbnf("a" * 40_000), "constraint_too_complex", "limit is 32768"),
        (lambda: spec.regex(""), "invalid_value", "empty"),
        (lambda: spec.regex(None), "invalid_type", "got null"),
        (lambda: spec.grammar(5), "invalid_type", "grammar: expected a string"),
        (lambda: spec.grammar(""), "invalid_value", "grammar: empty"),
        (lambda: spec.gbnf("\ud800"), "invalid_value", "surrogate"),
        (lambda: spec.from_recipe("xml", ""), "unsupported", "'xml'"),
    ],
)
def test_refused(make: object, kind: str, words: str) -> None:
    with pytest.raises(RowError) as caught:
        make()
    assert caught.value.kind == kind
    assert words in str(caught.value)


def test_what_the_recipe_asks() -> None:
    def tools(strict: bool | None) -> str:
        return json.dumps([{"type": "function", "function": {"name": "f", "strict": strict}}])

    assert spec.from_recipe("json", "") == spec.any_json_object()
    assert spec.from_recipe("json", '{"type": "null"}') == spec.json_schema({"type": "null"})
    assert spec.from_recipe("regex", "a+") == spec.regex("a+")
    assert spec.from_recipe("tool_call", tools(None)) is None
    assert spec.from_recipe("tool_call", tools(True)).kind == "tool_call"
    assert spec.from_recipe("tool_call_required", tools(None)).kind == "tool_call_required"


@pytest.mark.parametrize(
    "text, kind",
    [
        ('root ::= "a"', "gbnf"),
        ('# words\n  root   ::= x\nx-y ::= "b"', "gbnf"),
        ('start: "a"', "lark"),
        ('start: "x ::= y"', "lark"),
        ("start: A\nA: /::=/", "lark"),
    ],
)
def test_dialect_of_a_grammar(text: str, kind: str) -> None:
    assert spec.grammar(text).kind == kind
