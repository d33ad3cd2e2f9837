"""Tests how each JSON Schema keyword is handled; writes the table in the docs.

For each case the schema is compiled for the embedded model's vocabulary.  *Enforced* means that
valid values pass the masks, invalid values do not, and answers sampled with the masks validate.
*Refused* means that the row gets an error that names the keyword.  Anything else is a bug and ends
the script.

    python benchmarks/json_schema_conformance.py            prints the table
    python benchmarks/json_schema_conformance.py --write    puts it into docs/structured-output.md
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np

from deepinfer.errors import RowError
from deepinfer.recipes.constraints.compiler import CompiledConstraint, ConstraintCompiler
from deepinfer.recipes.constraints.spec import json_schema
from deepinfer.recipes.constraints.validate import matches
from deepinfer.recipes.constraints.vocabulary import ConstraintVocabulary
from deepinfer.recipes.embedded import embedded_model_path
from deepinfer.recipes.tokenizer import Tokenizer

PAGE = Path(__file__).parent.parent / "docs" / "structured-output.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
NUM_WALKS, MAX_WALK_TOKENS = 12, 200

# name, schema, valid values, invalid values
Case = tuple[str, Any, list[Any], list[Any]]


def _format(name: str, good: list[str], bad: list[str]) -> Case:
    return (f"format: {name}", {"type": "string", "format": name}, good, bad)


def _object(name: str, schema: dict[str, Any], good: list[Any], bad: list[Any]) -> Case:
    return (name, {"type": "object", **schema}, good, bad)


def _array(name: str, schema: dict[str, Any], good: list[Any], bad: list[Any]) -> Case:
    return (name, {"type": "array", **schema}, good, bad)


_LIST = {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}
_NODE = {"type": "object", "properties": _LIST, "required": ["v", "next"]}
_INT, _NULL, _STR = {"type": "integer"}, {"type": "null"}, {"type": "string"}
_CLOSED_AB = {"properties": {"a": _NULL, "b": _NULL}, "additionalProperties": False}


def _tagged(tag: str) -> dict[str, Any]:
    return {"type": "object", "properties": {"k": {"const": tag}}, "required": ["k"]}


CASES: list[Case] = [
    ("true", True, [1, {"a": []}, None], []),
    ("false", False, [], []),
    ("{}", {}, [1, "x", [None, True]], []),
    ("type: object", {"type": "object"}, [{}, {"a": 1}], [[], 1]),
    ("type: array", {"type": "array"}, [[], [1, "a"]], [{}, "a"]),
    ("type: string", {"type": "string"}, ["", "é\n\"\\"], [1, None]),
    ("type: integer", {"type": "integer"}, [0, -12], [1.5, "1"]),
    ("type: number", {"type": "number"}, [0, -1.5, 1e9], ["1", None]),
    ("type: boolean", {"type": "boolean"}, [True, False], [0, "true"]),
    ("type: null", {"type": "null"}, [None], [0, False]),
    ("type: list", {"type": ["integer", "null"]}, [1, None], ["a", 1.5]),
    ("type: unknown name", {"type": "text"}, [], []),
    ("enum", {"enum": [1, "a", None, {"x": 1}]}, [1, "a", None, {"x": 1}], [2, "b", {"x": 2}]),
    ("enum with type", {"type": "string", "enum": ["a", 1]}, ["a"], [1]),
    ("enum: empty", {"enum": []}, [], []),
    ("const", {"const": {"a": [1]}}, [{"a": [1]}], [{"a": [2]}, 1]),
    ("pattern", {**_STR, "pattern": "^a.c$"}, ["abc"], ["abcd", "xbc"]),
    ("pattern: not anchored", {**_STR, "pattern": "b"}, ["abc", "b"], ["ac", ""]),
    ("pattern with lengths", {**_STR, "pattern": "^a+$", "maxLength": 3}, ["aaa"], ["aaaa", ""]),
    ("pattern with look-ahead", {**_STR, "pattern": "^(?=a)b"}, [], []),
    ("pattern with a word boundary", {**_STR, "pattern": r"a\b"}, [], []),
    ("pattern with Unicode classes", {**_STR, "pattern": r"^\p{L}$"}, [], []),
    ("minLength, maxLength", {**_STR, "minLength": 2, "maxLength": 3}, ["éé"], ["a", "abcd"]),
    ("minLength: negative", {**_STR, "minLength": -1}, [], []),
    _format("date", ["2024-02-29"], ["2024-13-01", "x"]),
    _format("time", ["12:30:00Z"], ["25:00:00Z"]),
    _format("date-time", ["2024-01-01T12:30:00Z"], ["2024-01-01"]),
    _format("duration", ["P1DT2H"], ["1 day"]),
    _format("email", ["a@b.org"], ["a", "@"]),
    _format("hostname", ["a.example"], ["-a-", "a b"]),
    _format("ipv4", ["10.0.0.1"], ["10.0.0.256", "1.2.3"]),
    _format("ipv6", ["::1"], ["12345::", "g::"]),
    _format("uri", ["https://a.example/b?c=d"], ["no scheme"]),
    _format("uuid", ["12345678-1234-1234-1234-123456789abc"], ["1234"]),
    *(_format(name, [], []) for name in ("iri", "uri-reference", "json-pointer", "regex", "phone")),
    ("minimum, maximum", {**_INT, "minimum": -3, "maximum": 12}, [-3, 12, 0], [-4, 13]),
    ("exclusiveMinimum, exclusiveMaximum", {**_INT, "exclusiveMinimum": 3, "exclusiveMaximum": 6},
     [4, 5], [3, 6]),
    ("minimum, maximum: number", {"type": "number", "minimum": 0.5, "maximum": 1.25},
     [0.5, 1, 1.25], [0.4, 1.3]),
    ("minimum over maximum", {**_INT, "minimum": 3, "maximum": 2}, [], []),
    ("minimum beyond 64 bits", {**_INT, "minimum": -(10**30), "maximum": 10**30}, [], []),
    ("const: no 64-bit float", {"const": 2**53 + 1}, [], []),
    ("multipleOf", {**_INT, "multipleOf": 7}, [0, 14, -21], [1, 15]),
    ("multipleOf: hundredths", {"type": "number", "multipleOf": 0.01}, [0.07, 0.29], []),
    ("multipleOf: fraction", {"type": "number", "multipleOf": 0.25}, [0.25, -0.75, 1.25], [0.3]),
    _object("properties", {"properties": {"a": _INT}}, [{"a": 1}, {}, {"b": "x"}], [{"a": "x"}]),
    _object("properties: false", {"properties": {"a": False}}, [{}, {"b": 1}], [{"a": 1}]),
    _object("required", {"properties": {"a": _INT, "b": _INT}, "required": ["b"]},
            [{"a": 1, "b": 2}, {"b": 2}], [{"a": 1}, {}]),
    _object("required without properties", {"required": ["a", "b"]},
            [{"a": 1, "b": None}], [{}, {"a": 1}]),
    _object("required and forbidden", {"required": ["z"], "additionalProperties": False}, [], []),
    _object("additionalProperties: false", _CLOSED_AB, [{}, {"b": None}], [{"c": None}]),
    _object("additionalProperties: schema", {"additionalProperties": _INT},
            [{}, {"x": 1}], [{"x": "1"}]),
    _object("patternProperties", {"patternProperties": {"^x": _INT}, "additionalProperties": False},
            [{}, {"x1": 1}], [{"x1": "a"}, {"y": 1}]),
    _object("patternProperties: overlapping",
            {"patternProperties": {"^a": _INT, "b$": {}}}, [], []),
    _object("propertyNames", {"propertyNames": {"pattern": "^a"}}, [], []),
    _object("minProperties: 1", {"minProperties": 1}, [{"a": 1}], [{}]),
    _object("minProperties: 2, open", {"minProperties": 2}, [], []),
    _object("minProperties: 2, closed, optional", {**_CLOSED_AB, "minProperties": 2}, [], []),
    _object("minProperties: 1, all required", {**_CLOSED_AB, "required": ["a", "b"],
            "minProperties": 1}, [{"a": None, "b": None}], [{"a": None}]),
    _object("maxProperties", {"maxProperties": 1}, [{}, {"a": None}], [{"a": 1, "b": 2}]),
    _object("dependentRequired", {"dependentRequired": {"a": ["b"]}}, [], []),
    _object("dependentSchemas", {"dependentSchemas": {"a": {"required": ["b"]}}}, [], []),
    _object("dependencies", {"dependencies": {"a": ["b"]}}, [], []),
    _object("unevaluatedProperties", {"unevaluatedProperties": False}, [], []),
    ("if, then, else", {"if": {"const": 1}, "then": {"const": 1}, "else": {"const": 2}}, [], []),
    ("not", {"not": {"const": 1}}, [], []),
    ("anyOf", {"anyOf": [_INT, {**_STR, "maxLength": 2}]}, [1, "ab"], ["abc", None]),
    ("allOf", {"allOf": [{**_INT, "minimum": 3}, {"maximum": 5}]}, [3, 5], [2, 6]),
    ("allOf: objects", {"allOf": [
        {"type": "object", "properties": {"a": _INT}, "required": ["a"]},
        {"type": "object", "properties": {"b": _NULL}, "required": ["b"]}]},
     [{"a": 1, "b": None}], [{"a": 1}, {"b": None}]),
    ("allOf: nothing is both", {"allOf": [_INT, _STR]}, [], []),
    ("oneOf: types apart", {"oneOf": [_INT, _STR]}, [1, "a"], [None]),
    ("oneOf: told apart by a const", {"oneOf": [_tagged("a"), _tagged("b")]},
     [{"k": "a"}, {"k": "b"}], [{"k": "c"}]),
    ("oneOf: branches overlap", {"oneOf": [_INT, {"type": "number"}]}, [], []),
    ("$ref, $defs", {"$ref": "#/$defs/a", "$defs": {"a": _INT}}, [1], ["a"]),
    ("definitions", {"$ref": "#/definitions/a", "definitions": {"a": _INT}}, [1], ["a"]),
    ("$ref beside keywords", {"$ref": "#/$defs/a", "minimum": 3, "$defs": {"a": _INT}}, [3], [2]),
    ("$ref: recursion", {"$ref": "#/$defs/node", "$defs": {"node": _NODE}},
     [{"v": 1, "next": {"v": 2, "next": None}}], [{"v": 1, "next": {"v": 2}}]),
    ("$ref: required without an end",
     {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, [], []),
    ("$ref: to itself", {"$ref": "#"}, [], []),
    ("$ref: missing", {"$ref": "#/$defs/a"}, [], []),
    ("$ref: another document", {"$ref": "https://a.example/schema"}, [], []),
    ("$ref: to an anchor", {"$ref": "#a", "$defs": {"a": {"$anchor": "a"}}}, [], []),
    ("$id of the whole schema", {"$id": "https://a.example/s", **_INT}, [1], ["a"]),
    ("$id inside", {"items": {"$id": "https://a.example/s"}}, [], []),
    ("$dynamicRef", {"$dynamicRef": "#a"}, [], []),
    ("$schema: 2020-12", {"$schema": "https://json-schema.org/draft/2020-12/schema", **_INT},
     [1], ["a"]),
    ("$schema: draft-04", {"$schema": "http://json-schema.org/draft-04/schema#", **_INT,
                           "minimum": 0, "exclusiveMinimum": True}, [1], [0]),
    ("$schema: unknown", {"$schema": "https://a.example/dialect", **_INT}, [], []),
    ("$schema inside", {"items": {"$schema": "http://json-schema.org/draft-07/schema#"}}, [], []),
    _array("items", {"items": _INT}, [[], [1, 2]], [["a"]]),
    _array("items: false", {"items": False}, [[]], [[1]]),
    _array("prefixItems", {"prefixItems": [_INT, _STR]}, [[], [1], [1, "a", None]], [["a"]]),
    _array("prefixItems: closed", {"prefixItems": [_INT, _STR], "items": False, "minItems": 2},
           [[1, "a"]], [[1], [1, "a", 2]]),
    _array("items: list (before 2020-12)", {"items": [_INT]}, [], []),
    ("items: list, draft-07", {"$schema": "http://json-schema.org/draft-07/schema#",
     "type": "array", "items": [_INT], "additionalItems": False}, [[], [1]], [["a"], [1, 2]]),
    _array("minItems, maxItems", {"items": _NULL, "minItems": 1, "maxItems": 2},
           [[None], [None, None]], [[], [None] * 3]),
    _array("minItems over maxItems", {"minItems": 3, "maxItems": 2}, [], []),
    _array("contains", {"contains": _INT}, [], []),
    _array("minContains", {"contains": _INT, "minContains": 2}, [], []),
    _array("uniqueItems: true", {"uniqueItems": True}, [], []),
    _array("uniqueItems: false", {"uniqueItems": False, "items": _NULL}, [[None, None]], [[1]]),
    _array("unevaluatedItems", {"unevaluatedItems": False}, [], []),
    ("contentEncoding", {**_STR, "contentEncoding": "base64"}, [], []),
    ("nullable", {**_STR, "nullable": True}, [], []),
    ("title, description, default, examples", {**_INT, "title": "t", "description": "d",
     "default": 1, "examples": [2]}, [3], ["a"]),
    ("x-...", {**_INT, "x-order": 1}, [3], ["a"]),
    ("a misspelt keyword", {**_STR, "minLenght": 3}, [], []),
]  # fmt: skip


def run_case(compiler: ConstraintCompiler, tokenizer: Tokenizer, case: Case) -> tuple[str, str]:
    """``enforced`` with the number of answers tested, or ``refused`` with the reason.

    Raises: AssertionError if the schema is neither.
    """
    name, schema, good, bad = case
    try:
        spec = json_schema(schema)
        compiled = compiler.compile(spec)
    except RowError as error:
        assert not good, f"{name}: {error}"
        return "refused", f"{error.kind}: {_reason(str(error))}"
    assert good, f"{name}: compiles, but no value is said to be right"
    for value in good:
        assert _passes(compiled, tokenizer, value), f"{name}: the masks forbid {value!r}"
        assert matches(spec, json.dumps(value)), f"{name}: {value!r} is not valid"
    for value in bad:
        assert not _passes(compiled, tokenizer, value), f"{name}: the masks allow {value!r}"
        # jsonschema supports some formats only with packages that are not installed.
        is_known = "format" not in name
        assert not (is_known and matches(spec, json.dumps(value))), f"{name}: {value!r} is valid"
    answers = [_walk(compiled, tokenizer, seed) for seed in range(NUM_WALKS)]
    for answer in answers:
        assert answer is None or matches(spec, answer), f"{name}: drawn {answer!r}"
    return "enforced", ""


def _reason(message: str) -> str:
    one_line = " ".join(message.split()).replace("|", "\\|")
    return one_line.removeprefix("json_schema").lstrip(": ")[:110]


def _passes(compiled: CompiledConstraint, tokenizer: Tokenizer, value: Any) -> bool:
    matcher = compiled.new_matcher()
    try:
        for token_id in tokenizer.encode_plain(json.dumps(value, ensure_ascii=False)):
            matcher.push(token_id)
    except ValueError:
        return False
    return matcher.is_accepting


def _walk(compiled: CompiledConstraint, tokenizer: Tokenizer, seed: int) -> str | None:
    choice = random.Random(seed)
    matcher, tokens = compiled.new_matcher(), []
    while len(tokens) < MAX_WALK_TOKENS:
        bits = np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")
        allowed = np.flatnonzero(bits)
        if matcher.is_accepting and (len(allowed) == 1 or choice.random() < 0.2):
            return tokenizer.decode(tokens)
        tokens.append(int(choice.choice(allowed[allowed != tokenizer.eos_id])))
        matcher.push(tokens[-1])
    return None


def table() -> str:
    """The conformance table as Markdown."""
    tokenizer = Tokenizer.from_file(embedded_model_path() / "tokenizer.json")
    vocabulary = ConstraintVocabulary(tokenizer, tokenizer.size)
    lines = ["| keyword | result | error |", "| --- | --- | --- |"]
    with ConstraintCompiler(vocabulary) as compiler:
        for case in CASES:
            result, reason = run_case(compiler, tokenizer, case)
            lines.append(f"| {case[0]} | {result} | {reason} |")
    return "\n".join(lines)


def page_with(text: str) -> str:
    """The page of the docs with ``text`` as its table."""
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


if __name__ == "__main__":
    result = table()
    if "--write" in sys.argv[1:]:
        PAGE.write_text(page_with(result), encoding="utf-8")
    else:
        print(result)
