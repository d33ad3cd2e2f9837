"""Finds schemas whose values would have to be nested without an end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from .schema_places import all_schemas

_CONTAINERS = frozenset({"object", "array"})
# Of the search.  What takes more of them is let pass.
_MOST_ROUNDS = 16


def is_endless(schema: Any) -> bool:
    """Whether no finite value can match, as what must come refers back to it.

    ``schema`` is checked (``keywords.checked_schema``).  Other reasons for which nothing matches
    are not looked for.
    """
    nodes = list(all_schemas(schema))
    ending: set[int] = set()
    for _ in range(_MOST_ROUNDS):
        found = len(ending)
        for node in nodes:
            if id(node) not in ending and _ends(node, schema, ending):
                ending.add(id(node))
        nodes.reverse()  # chains of references that lead forwards or backwards take one round
        if found == len(ending):
            return isinstance(schema, Mapping) and id(schema) not in ending
    return False


def _ends(node: Mapping[str, Any], root: Any, ending: set[int]) -> bool:
    """Whether a finite value matches if the schemas in ``ending`` have one."""

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
    """What ``#/...`` points at; True if there is nothing, which others report."""
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
