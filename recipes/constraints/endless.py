"""Finds schemas that only infinitely nested values would match."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from .schema_places import all_schemas

_CONTAINERS = frozenset({"object", "array"})
# Limit of the search; schemas that need more rounds are accepted.
_MOST_ROUNDS = 16


def is_endless(schema: Any) -> bool:
    """Whether no finite value can match, because required parts refer back to the schema.

    ``schema`` was checked by ``keywords.checked_schema``.  Other reasons for which nothing matches
    are not detected.
    """
    nodes = list(all_schemas(schema))
    ending: set[int] = set()
    for _ in range(_MOST_ROUNDS):
        found = len(ending)
        for node in nodes:
            if id(node) not in ending and _ends(node, schema, ending):
                ending.add(id(node))
        nodes.reverse()  # so that chains of references in either direction take one round
        if found == len(ending):
            return isinstance(schema, Mapping) and id(schema) not in ending
    return False


def _ends(node: Mapping[str, Any], root: Any, ending: set[int]) -> bool:
    """Whether a finite value matches ``node``, given that one exists for the schemas in ``ending``
    (ids)."""

    def ends(inner: Any) -> bool:
        return not isinstance(inner, Mapping) or id(inner) in ending

    if "$ref" in node and not ends(_target(root, node["$ref"])):
        return False
    if not all(map(ends, node.get("allOf", ()))):
        return False
    if any(name in node and not any(map(ends, node[name])) for name in ("anyOf", "oneOf")):
        return False
    kinds = node.get("type", ())
    kinds = {kinds} if isinstance(kinds, str) else set(kinds)
    if "enum" in node or "const" in node or not kinds or kinds - _CONTAINERS:
        return True
    return ("object" in kinds and all(map(ends, _required(node)))) or (
        "array" in kinds and all(map(ends, _first_items(node)))
    )


def _required(node: Mapping[str, Any]) -> Iterator[Any]:
    properties = node.get("properties", {})
    for name in node.get("required", ()):
        yield properties.get(name, node.get("additionalProperties", True))


def _first_items(node: Mapping[str, Any]) -> Iterator[Any]:
    count = node.get("minItems", 0)
    items = node.get("items", True)
    prefix = items if isinstance(items, list) else node.get("prefixItems", [])
    rest = node.get("additionalItems", True) if isinstance(items, list) else items
    yield from prefix[:count]
    if count > len(prefix):
        yield rest


def _target(root: Any, reference: str) -> Any:
    """The target of ``#/...``; True if it does not exist, which is reported elsewhere."""
    found = root
    for step in unquote(reference).split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping) and key in found:
            found = found[key]
        elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            return True
    return found
