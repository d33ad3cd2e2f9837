"""The constraint of a chat request as the official recipe states it, with nothing left out.

The recipe rewrites strict schemas: it closes their objects, and drops keywords that its own server
does not enforce (lengths, numbers of items, definitions).  Here both hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .spec import ConstraintSpec, compact_json, from_recipe, parse_json


def official_constraint(kind: str, schema: str, body: Mapping[str, Any]) -> ConstraintSpec | None:
    """The spec for what the recipe made (``kind``, ``schema``) of the chat request ``body``.

    Raises: RowError.
    """
    if kind == "json" and schema:
        own = body["response_format"]["json_schema"]["schema"]
        schema = compact_json(_with_dropped(parse_json(schema, "json_schema"), own))
    elif kind.startswith("tool_call"):
        own_tools = {tool["function"]["name"]: tool for tool in body["tools"]}
        tools = parse_json(schema, "tools")
        schema = compact_json(
            [_with_dropped(tool, own_tools[tool["function"]["name"]]) for tool in tools]
        )
    return from_recipe(kind, schema)


def _with_dropped(official: Any, own: Any) -> Any:
    """``official``, and what ``own`` says beyond it, in the order of ``own``."""
    if isinstance(official, Mapping) and isinstance(own, Mapping):
        both = {
            key: _with_dropped(official[key], value) if key in official else value
            for key, value in own.items()
        }
        return both | {key: value for key, value in official.items() if key not in own}
    if _is_list(official) and _is_list(own) and len(official) == len(own):
        return [_with_dropped(*pair) for pair in zip(official, own, strict=True)]
    return official


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)
