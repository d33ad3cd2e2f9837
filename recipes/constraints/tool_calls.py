"""Grammar of tool calls: the block that the official parser reads, for the tools of a row.

A call is ``<M invoke name="NAME">``, a line ``<M parameter name="KEY" string="true|false">VALUE</M
parameter>`` per parameter, and ``</M invoke>``, where M is the marker token.  With
``string="true"`` the value is raw text, otherwise JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from deepinfer.errors import RowError

from .keywords import checked_schema

# Terminals that end in "</" extend to the marker, so that a value may contain "</".  Text that
# spells the marker is excluded, as a reader could not tell it from the token.
_COMMON_RULES = r"""
marker: <[%(marker_id)d]>
TEXT: /(?s:.*)/ & ~SPELLED
BEFORE_BLOCK: /(?s:.*)\n\n</ & ~SPELLED
RAW: /(?s:.*)<\// & ~SPELLED
NAME: /[^"<>\\\s\x00-\x1f]+/ & ~SPELLED
SPELLED: /(?s:.*)%(spelling)s(?s:.*)/
free_parameter: "<" marker " parameter name=\"" NAME "\" string=\"" free_value end_parameter
end_parameter: marker " parameter>\n"
free_value: "true\">" RAW | "false\">" any_json "</"
any_json: %%json %(any_json)s
"""
# Keywords allowed for the object of parameters: these are generated one by one, so no others can be
# enforced.
_OBJECT_KEYWORDS = frozenset(
    {"type", "properties", "required", "additionalProperties", "$defs", "definitions", "$schema"}
)
_RAW_KEYWORDS = frozenset({"type", "enum", "const", "minLength", "maxLength"})
_RAW_TAG, _JSON_TAG = '"true">', '"false">'
# The official parser ends a name at a space, and copies a backslash to JSON unchanged.
_UNFIT_FOR_ATTRIBUTE = re.compile(r'["<>\\\s\x00-\x1f]')


def tool_call_grammar(
    tools: Sequence[Mapping[str, Any]],
    *,
    is_required: bool,
    marker: str,
    marker_id: int,
    json_options: Mapping[str, Any],
) -> str:
    """A Lark grammar of the answer after the reasoning.

    With ``is_required`` the prompt has opened the block, so the answer consists of calls and the
    end of the block; otherwise of text, optionally followed by a whole block.
    Raises: RowError ``invalid_schema``, ``unsupported_keyword``.
    """
    if not tools:
        raise RowError("invalid_schema", "tools: the list is empty")
    calls = 'invoke+ "</" marker " calls>"'
    start = calls if is_required else f'TEXT | BEFORE_BLOCK marker " calls>\\n" {calls}'
    invocations = " | ".join(f"invoke_{place}" for place in range(len(tools)))
    rules = [f"start: {start}", f"invoke: {invocations}"]
    for place, tool in enumerate(tools):
        rules += _Tool(tool["function"], place, json_options).rules()
    common = _COMMON_RULES % {
        "marker_id": marker_id,
        "spelling": re.escape(marker),
        "any_json": json.dumps({"x-guidance": dict(json_options)}),
    }
    return "\n".join(rules) + common


def checked_parameters(function: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a strict tool's parameters, checked.

    Raises: RowError ``invalid_schema`` or ``unsupported_keyword``, naming the tool.
    """
    name = function["name"]
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    try:
        schema = checked_schema(parameters)
    except RowError as error:
        raise RowError(error.kind, f"tool {name!r:.80}: {error}") from error
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        _refuse(function, "invalid_schema", "the parameters must be of type object")
    for keyword in schema:
        if keyword not in _OBJECT_KEYWORDS:
            _refuse(
                function, "unsupported_keyword", f"{keyword!r} cannot be enforced on parameters"
            )
    if schema.get("additionalProperties", False) is not False:
        _refuse(function, "unsupported_keyword", "'additionalProperties' must be false")
    for name in schema.get("required", ()):
        if name not in schema.get("properties", {}):
            _refuse(function, "invalid_schema", f"required parameter {name!r} has no schema")
    return schema


def _refuse(function: Mapping[str, Any], kind: str, reason: str) -> NoReturn:
    raise RowError(kind, f"tool {function['name']!r:.80}, strict: {reason}")


class _Tool:
    """The rules of one tool; their names contain its index, so tools never share a rule."""

    def __init__(self, function: Mapping[str, Any], place: int, options: Mapping[str, Any]) -> None:
        self.function = function
        self.place = place
        self.options = options

    def rules(self) -> list[str]:
        name = _attribute(self.function, self.function["name"])
        opening = f'"<" marker {_literal(f" invoke name={name}>" + chr(10))}'
        closing = '"</" marker " invoke>\\n"'
        if not self.function.get("strict"):
            return [f"invoke_{self.place}: {opening} free_parameter* {closing}"]
        schema = checked_parameters(self.function)
        required = schema.get("required", ())
        definitions: dict[str, Any] = {
            key: schema[key] for key in ("$defs", "definitions") if key in schema
        }
        references, rules = [], []
        for index, (key, value) in enumerate(schema.get("properties", {}).items()):
            rule = f"parameter_{self.place}_{index}"
            references.append(rule if key in required else f"{rule}?")
            rules += self.parameter(rule, key, value, definitions)
        return [f"invoke_{self.place}: {opening} {' '.join(references)} {closing}", *rules]

    def parameter(
        self, rule: str, key: str, schema: Any, definitions: Mapping[str, Any]
    ) -> list[str]:
        opening = f" parameter name={_attribute(self.function, key)} string="
        raw = _raw_terminal(schema)
        if raw is not None:
            value = f"{_literal(opening + _RAW_TAG)} {rule.upper()}"
            extra = f"{rule.upper()}: {raw} & ~SPELLED"
        else:
            whole = {"x-guidance": dict(self.options), **definitions, **_as_mapping(schema)}
            value = f'{_literal(opening + _JSON_TAG)} {rule}_json "</"'
            extra = f"{rule}_json: %json {json.dumps(whole)}"
        return [f'{rule}: "<" marker {value} end_parameter', extra]


def _raw_terminal(schema: Any) -> str | None:
    """A terminal for a raw string followed by "</"; None if the value must be JSON."""
    if not isinstance(schema, dict) or not schema.keys() <= _RAW_KEYWORDS:
        return None
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if values is not None:
        is_plain = all(isinstance(value, str) for value in values)
        if (
            not is_plain
            or schema.keys() - {"type", "enum", "const"}
            or len(schema.keys() - {"type"}) > 1
        ):
            return None
        return "(" + " | ".join(_literal(value + "</") for value in values) + ")"
    if schema.get("type") != "string":
        return None
    shortest, longest = schema.get("minLength", 0), schema.get("maxLength", "")
    return rf"/(?s:.{{{shortest},{longest}}})<\//"


def _as_mapping(schema: Any) -> dict[str, Any]:
    if isinstance(schema, bool):
        return {} if schema else {"enum": []}
    return dict(schema)


def _attribute(function: Mapping[str, Any], name: str) -> str:
    if not name or _UNFIT_FOR_ATTRIBUTE.search(name):
        _refuse(function, "invalid_schema", f"the name {name!r:.80} cannot occur in a tool call")
    return f'"{name}"'


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
