"""The table of the docs is what the script finds now."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from deepinfer.errors import RowError
from deepinfer.recipes.constraints import keywords

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "json_schema_conformance.py"


def test_table_is_current() -> None:
    found = importlib.util.spec_from_file_location("json_schema_conformance", SCRIPT)
    assert found and found.loader
    script = importlib.util.module_from_spec(found)
    found.loader.exec_module(script)
    page = script.PAGE.read_text(encoding="utf-8")
    hint = "run: python -P benchmarks/json_schema_conformance.py --write"
    assert page == script.page_with(script.table()), hint
    tried = {keyword for _, schema, *_ in script.CASES for keyword in _keywords(schema)}
    assert tried >= keywords.ENFORCED, "an enforced keyword that no case tries"


def _keywords(schema: object) -> set[str]:
    if isinstance(schema, dict):
        return set(schema).union(*(_keywords(value) for value in schema.values()))
    return (
        set().union(*(_keywords(value) for value in schema)) if isinstance(schema, list) else set()
    )


@pytest.mark.parametrize(
    "schema, kind, words",
    [
        ({"properties": {"a": {"items": {"not": {}}}}}, "unsupported_keyword",
         "#/properties/a/items: the keyword 'not'"),
        ({"minLenght": 3}, "unsupported_keyword", "did you mean minLength?"),
        ({"$ref": "other.json"}, "unsupported_keyword", "'other.json' is outside"),
        ({"anyOf": [{}, 5]}, "invalid_schema", "#/anyOf/1: expected a schema, got 5"),
        ({"type": "strin"}, "invalid_schema", "#/type"),
        ({"properties": [1]}, "invalid_schema", "#/properties"),
        ({"items": {"const": 2**53 + 1}}, "unsupported_keyword", "#/items/const: the number 9007"),
        ({"enum": [{"a": [-(10**400)]}]}, "unsupported_keyword", "#/enum: the number -1000"),
        ({"pattern": r"^\p{L}"}, "invalid_schema", "#/pattern: the pattern '^\\\\p{L}' cannot"),
    ],
)  # fmt: skip
def test_errors_name_keyword_and_place(schema: dict, kind: str, words: str) -> None:
    with pytest.raises(RowError) as caught:
        keywords.checked_schema(schema)
    assert caught.value.kind == kind
    assert words in str(caught.value)


def test_depth_is_limited() -> None:
    schema: dict = {}
    for _ in range(200):
        schema = {"items": schema}
    with pytest.raises(RowError, match="nested over 64 deep"):
        keywords.checked_schema(schema)


_AGAIN = {"$ref": "#"}
_DRAFT_7 = "http://json-schema.org/draft-07/schema#"
_LIST_OF = {"type": "array", "minItems": 1}


@pytest.mark.parametrize(
    "schema, endless",
    [
        ({"type": "object", "properties": {"a": _AGAIN}, "required": ["a"]}, True),
        ({"type": "object", "properties": {"a": _AGAIN}}, False),
        ({"type": ["object", "null"], "properties": {"a": _AGAIN}, "required": ["a"]}, False),
        ({"type": "object", "additionalProperties": _AGAIN, "required": ["a"]}, True),
        ({**_LIST_OF, "items": _AGAIN}, True),
        ({"type": "array", "items": _AGAIN}, False),
        ({**_LIST_OF, "prefixItems": [{"type": "null"}], "items": _AGAIN}, False),
        ({**_LIST_OF, "prefixItems": [_AGAIN]}, True),
        ({"$schema": _DRAFT_7, **_LIST_OF, "items": [_AGAIN]}, True),
        ({"anyOf": [{**_LIST_OF, "items": _AGAIN}, {"type": "null"}]}, False),
        ({"anyOf": [{**_LIST_OF, "items": _AGAIN}, _AGAIN]}, True),
        ({"allOf": [{"type": "array"}, {**_LIST_OF, "items": _AGAIN}]}, True),
        ({"$defs": {"a/b": {"$ref": "#/$defs/c%20d"}, "c d": {"$ref": "#/$defs/a~1b"}},
          "$ref": "#/$defs/a~1b"}, True),
        ({"const": _AGAIN}, False),
        ({"properties": {"$ref": {"type": "null"}}, "type": "object", "required": ["$ref"]}, False),
    ],
)  # fmt: skip
def test_values_without_an_end_are_refused(schema: dict, endless: bool) -> None:
    if endless:
        with pytest.raises(RowError, match="no finite value matches"):
            keywords.checked_schema(schema)
    else:
        keywords.checked_schema(schema)


def test_long_chains_of_references_end() -> None:
    """Each refers to the next one; only the last one ends."""
    chain: dict = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(400)}
    schema = {"$ref": "#/$defs/d0", "$defs": {**chain, "d400": {"type": "null"}}}
    assert keywords.checked_schema(schema) == schema


def test_numbers_that_masks_hold_exactly_are_kept() -> None:
    schema = {"enum": [2**53, 2**60, -(10**20), 0.1, 1e300], "minLength": 2.0}
    assert keywords.checked_schema(schema) == {**schema, "minLength": 2}


def test_annotations_go_and_order_stays() -> None:
    schema = {
        "title": "t",
        "type": "object",
        "properties": {"title": {"type": "string", "default": "x"}, "a": {"x-y": 1}},
        "required": ["title"],
        "uniqueItems": False,
    }
    cleaned = keywords.checked_schema(schema)
    assert cleaned == {
        "type": "object",
        "properties": {"title": {"type": "string"}, "a": {}},
        "required": ["title"],
    }
    assert list(cleaned) == ["type", "properties", "required"]
