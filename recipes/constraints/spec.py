"""``ConstraintSpec``: a constraint as plain data that can be compared, hashed and cached."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from deepinfer.errors import RowError, json_name

ConstraintKind = Literal[
    "json_object", "json_schema", "regex", "lark", "gbnf", "tool_call", "tool_call_required"
]
JSON_KINDS = frozenset({"json_object", "json_schema"})
TOOL_KINDS = frozenset({"tool_call", "tool_call_required"})

# Far more than any useful schema; parsing one of this size takes tens of milliseconds.
MAX_TEXT_CHARS = 256 * 1024
# Rewriting a grammar costs more per character.
MAX_GBNF_CHARS = 32 * 1024


@dataclass(frozen=True, slots=True)
class ConstraintSpec:
    """One constraint.  Equal specs are compiled once.

    ``text``: compact JSON for the JSON and tool kinds (with the order of keys, which is that of the
    answer), else the regular expression or grammar.
    """

    kind: ConstraintKind
    text: str = ""

    @property
    def digest(self) -> str:
        """SHA-256 over kind and text, in hexadecimal; a stable name for reports."""
        return hashlib.sha256(f"{self.kind}\0{self.text}".encode("utf-8", "replace")).hexdigest()


def any_json_object() -> ConstraintSpec:
    """Any JSON object."""
    return ConstraintSpec("json_object")


def json_schema(schema: str | bool | Mapping[str, Any]) -> ConstraintSpec:
    """A JSON Schema, as text or parsed.  Raises: RowError ``invalid_schema``."""
    value = parse_json(schema, "json_schema") if isinstance(schema, str) else schema
    if not isinstance(value, Mapping | bool):
        raise RowError(
            "invalid_schema",
            f"json_schema: expected an object or a boolean, got {json_name(value)}",
        )
    return ConstraintSpec("json_schema", compact_json(value))


def regex(expression: str) -> ConstraintSpec:
    """A regular expression that the whole answer matches (Rust syntax: no look-around)."""
    return _text_spec("regex", expression)


def lark(grammar: str) -> ConstraintSpec:
    """A grammar in the Lark dialect of llguidance; it starts at the rule ``start``."""
    return _text_spec("lark", grammar)


def gbnf(grammar: str) -> ConstraintSpec:
    """An EBNF grammar in the GBNF dialect; it starts at the rule ``root``."""
    return _text_spec("gbnf", grammar)


def grammar(text: str) -> ConstraintSpec:
    """A grammar in either dialect: GBNF if it has a rule of the form ``name ::=``, else Lark."""
    _check_text("grammar", text)
    is_gbnf = re.search(r"^[ \t]*[\w-]+[ \t]*::=", text, re.MULTILINE)
    return gbnf(text) if is_gbnf else lark(text)


def from_recipe(kind: str, schema: str) -> ConstraintSpec | None:
    """The spec for a constraint of the official recipe; None if there is nothing to enforce.

    Tools that are neither strict nor required do not constrain the answer, as in the official API.
    Raises: RowError.
    """
    if kind == "json":
        return json_schema(schema) if schema else any_json_object()
    if kind == "regex":
        return regex(schema)
    if kind == "tool_call_required":
        return ConstraintSpec("tool_call_required", compact_json(parse_json(schema, "tools")))
    if kind == "tool_call":
        tools = parse_json(schema, "tools")
        is_strict = any(tool.get("function", {}).get("strict") for tool in tools)
        return ConstraintSpec("tool_call", compact_json(tools)) if is_strict else None
    raise RowError(
        "unsupported", f"constraint of kind {kind!r}; expected json, regex or tool calls"
    )


def parse_json(text: str, where: str) -> Any:
    """Parse strict JSON, without NaN or duplicate keys.  Raises: RowError ``invalid_schema`` naming
    the position, or ``constraint_too_complex``."""
    _check_size(text, where)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in pairs:
            if name in found:
                raise RowError(
                    "invalid_schema", f"{where}: the key {name[:40]!r} is there twice; keep one"
                )
            found[name] = value
        return found

    try:
        return strict_json(text, where, object_pairs_hook=unique)
    except RecursionError as error:
        raise RowError("constraint_too_complex", f"{where}: nested too deeply") from error


def strict_json(
    text: str,
    where: str,
    *,
    parse_float: Callable[[str], Any] = float,
    object_pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None,
) -> Any:
    """Parse JSON without NaN, of any size.  Raises: RowError ``invalid_schema``, RecursionError."""

    def refuse(constant: str) -> NoReturn:
        raise RowError("invalid_schema", f"{where}: {constant} is not JSON")

    try:
        return json.loads(
            text,
            parse_constant=refuse,
            parse_float=parse_float,
            object_pairs_hook=object_pairs_hook,
        )
    except json.JSONDecodeError as error:
        raise RowError(
            "invalid_schema",
            f"{where}: not JSON at line {error.lineno}, column {error.colno}: {error.msg}",
        ) from error
    except ValueError as error:
        raise RowError("invalid_schema", f"{where}: {error}") from error


def compact_json(value: Any) -> str:
    """Canonical JSON in the order of keys given.  Raises: RowError ``invalid_schema``."""
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except RecursionError as error:
        raise RowError("constraint_too_complex", "json_schema: nested too deeply") from error
    except (TypeError, ValueError) as error:
        raise RowError("invalid_schema", f"json_schema: not JSON: {error}") from error
    _check_size(text, "json_schema")
    return text


def _text_spec(kind: ConstraintKind, text: str) -> ConstraintSpec:
    _check_text(kind, text)
    _check_size(text, kind, MAX_GBNF_CHARS if kind == "gbnf" else MAX_TEXT_CHARS)
    return ConstraintSpec(kind, text)


def _check_text(kind: str, text: Any) -> None:
    if not isinstance(text, str):
        raise RowError("invalid_type", f"{kind}: expected a string, got {json_name(text)}")
    if not text:
        raise RowError("invalid_value", f"{kind}: empty, which is no constraint; remove it")
    if any(0xD800 <= ord(character) < 0xE000 for character in text):
        raise RowError("invalid_value", f"{kind}: contains a lone surrogate, which is not text")


def _check_size(text: str, where: str, max_chars: int = MAX_TEXT_CHARS) -> None:
    if len(text) > max_chars:
        raise RowError(
            "constraint_too_complex",
            f"{where}: {len(text)} characters, the limit is {max_chars}",
        )
