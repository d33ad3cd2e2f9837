"""The places of a JSON Schema that contain further schemas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

WITH_ONE_SCHEMA = frozenset({"items", "additionalProperties", "additionalItems"})
WITH_SCHEMA_LIST = frozenset({"anyOf", "allOf", "oneOf", "prefixItems", "items"})
WITH_SCHEMA_MAP = frozenset({"properties", "patternProperties", "$defs", "definitions"})


def all_schemas(schema: Any) -> Iterator[Mapping[str, Any]]:
    """All schemas in ``schema`` that are objects, inner ones first, ``schema`` itself last."""
    if not isinstance(schema, Mapping):
        return
    for keyword, value in schema.items():
        if keyword in WITH_SCHEMA_MAP:
            inner = list(value.values())
        elif keyword in WITH_SCHEMA_LIST and isinstance(value, list):
            inner = value
        else:
            inner = [value] if keyword in WITH_ONE_SCHEMA else []
        for one in inner:
            yield from all_schemas(one)
    yield schema
