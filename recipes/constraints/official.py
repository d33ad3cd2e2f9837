"""The constraint of a chat request: that of the official recipe, plus everything that it drops.

The recipe rewrites strict schemas: it closes their objects, and drops keywords that its own server
does not enforce (lengths, numbers of items, definitions).  Here both are enforced.  Requests for
which the recipe silently drops a constraint are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deepinfer.errors import RowError

from .spec import ConstraintSpec, compact_json, from_recipe, parse_json


def check_is_kept(kind: str | None, body: Mapping[str, Any]) -> None:
    """Check that the recipe's constraint (its ``kind``, or None) is what the chat request asks for.

    Raises: RowError ``invalid_value`` for a format or tool call that it would silently drop.
    """
    form = body.get("response_format")
    wants_form = isinstance(form, Mapping) and form.get("type", "text") != "text"
    if wants_form and kind not in ("json", "regex"):
        raise RowError(
            "invalid_value", "response_format cannot be combined with tools; remove one of the two"
        )
    choice = body.get("tool_choice")
    wants_call = choice == "required" or isinstance(choice, Mapping)
    if wants_call and kind != "tool_call_required":
        raise RowError("invalid_value", "tool_choice asks for a call, but there are no tools")


def official_constraint(kind: str, schema: str, body: Mapping[str, Any]) -> ConstraintSpec | None:
    """The spec for the recipe's constraint (``kind``, ``schema``) of the chat request ``body``.

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
    """``official`` plus what only ``own`` has, in the order of ``own``."""
    if isinstance(official, Mapping) and isinstance(own, Mapping):
        both = {
            key: _with_dropped(official[key], value) if key in official else value
            for key, value in own.items()
        }
        return both | {key: value for key, value in official.items() if key not in own}
    if _is_list(official) and _is_list(own) and len(official) == len(own):
        return [_with_dropped(*pair) for pair in zip(official, own, strict=True)]
    is_number = isinstance(own, int | float) and isinstance(official, int | float)
    return own if is_number and float(own) == official else official  # it may have been rounded


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)
