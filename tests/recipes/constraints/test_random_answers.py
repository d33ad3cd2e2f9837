"""Whatever is drawn through the masks is valid: the promise of structured output."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deepinfer.errors import RowError
from deepinfer.recipes.constraints import spec
from deepinfer.recipes.constraints.compiler import ConstraintCompiler
from deepinfer.recipes.constraints.spec import ConstraintSpec
from deepinfer.recipes.constraints.validate import judge, matches
from deepinfer.recipes.tokenizer import Tokenizer
from deepinfer.recipes.types import Answer

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "ü"]}, "maxItems": 3},
        "born": {"type": "string", "format": "date"},
        "score": {"type": "number", "multipleOf": 0.01},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
TREE = {
    "$ref": "#/$defs/tree",
    "$defs": {
        "tree": {
            "type": "object",
            "properties": {
                "v": {"type": "boolean"},
                "kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2},
            },
            "required": ["v"],
            "additionalProperties": False,
        }
    },
}
REGEXES = [
    r"[a-z]{3,5} \d+",
    r"(yes|no|maybe)",
    r"\w{1,8}@\w{2,9}\.(com|org)",
    "(a|ab)(c|bcd)d*",
    "é{2}|.{3}",
]
SPECS = [
    spec.any_json_object(),
    spec.json_schema(PERSON),
    spec.json_schema(TREE),
    spec.json_schema(True),
    spec.json_schema({"type": "string", "pattern": "^[A-Z]{2}-[0-9]{1,4}$"}),
    *map(spec.regex, REGEXES),
    spec.lark('start: "a" start "b" | /[0-9]+/'),
    spec.gbnf('root ::= expr\nexpr ::= term ("+" term)*\nterm ::= [0-9]+ | "(" expr ")"'),
    spec.gbnf('root ::= ("a" | "ab")* "c"'),
]


@pytest.mark.parametrize("constraint", SPECS, ids=lambda one: f"{one.kind}-{one.digest[:4]}")
def test_random_answers_are_valid(
    compiler: ConstraintCompiler,
    constraint: ConstraintSpec,
    walk: Callable,
    tokenizer_of: Callable[[ConstraintCompiler], Tokenizer],
) -> None:
    compiled = compiler.compile(constraint)
    num_finished = 0
    for seed in range(20):
        tokens = walk(compiler, compiled.new_matcher(), seed)
        if tokens is None:
            continue
        num_finished += 1
        text = tokenizer_of(compiler).decode(tokens)
        assert judge(constraint, Answer(content=text), "stop") == "valid", text
        assert judge(constraint, Answer(content=text), "length") == "incomplete"
        if constraint.kind == "regex":
            assert re.fullmatch(constraint.text, text, re.ASCII), text
    assert num_finished >= 10


_scalars = st.sampled_from(
    [
        {"type": "integer"},
        {"type": "null"},
        {"type": "integer", "minimum": -5, "exclusiveMaximum": 100},
        {"type": "string", "maxLength": 5},
        {"type": "string", "pattern": "^a*b"},
        {"type": "string", "format": "ipv4"},
        {"enum": ["x", 1, None]},
        {"const": [1, {"k": "v"}]},
        {"type": ["boolean", "null"]},
        {"type": "number", "minimum": 0, "maximum": 1},
    ]
)
_names = st.sampled_from(["a", "b", "long name", 'q"', "ü"])


def _compound(inner: st.SearchStrategy[dict]) -> st.SearchStrategy[dict]:
    objects = st.builds(
        lambda properties, required, more: {
            "type": "object",
            "properties": properties,
            "required": sorted(required),
            "additionalProperties": more,
        },
        st.dictionaries(_names, inner, max_size=3),
        st.sets(_names, max_size=2),
        st.one_of(st.just(False), inner),
    )
    arrays = st.builds(
        lambda items, low, extra, first: {
            "type": "array",
            "items": items,
            "minItems": low,
            "maxItems": low + extra,
            **({"prefixItems": first} if first else {}),
        },
        inner,
        st.integers(0, 2),
        st.integers(0, 2),
        st.lists(inner, max_size=2),
    )
    unions = st.builds(
        lambda name, parts: {name: parts},
        st.sampled_from(["anyOf", "oneOf", "allOf"]),
        st.lists(inner, min_size=1, max_size=3),
    )
    return st.one_of(objects, arrays, unions)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(schema=st.recursive(_scalars, _compound, max_leaves=6), seed=st.integers(0, 1000))
def test_random_schemas_are_enforced_or_refused(
    golden_compiler: ConstraintCompiler,
    golden: Tokenizer,
    walk: Callable,
    schema: dict,
    seed: int,
) -> None:
    constraint = spec.json_schema(schema)
    try:
        compiled = golden_compiler.compile(constraint)
    except RowError as error:
        assert error.kind in ("unsupported_keyword", "invalid_schema")
        return
    tokens = walk(golden_compiler, compiled.new_matcher(), seed)
    if tokens is not None:
        assert matches(constraint, golden.decode(tokens)), golden.decode(tokens)
