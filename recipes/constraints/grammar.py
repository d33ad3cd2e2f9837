"""Translates a ``ConstraintSpec`` to an llguidance grammar."""

from __future__ import annotations

import json
import re
from typing import Any

import llguidance

from deepinfer.errors import RowError

from .gbnf_lark import gbnf_to_lark
from .keywords import checked_schema
from .spec import ConstraintSpec
from .tool_calls import tool_call_grammar

# One space, or a line break with indentation, as JSON writers emit.  Without a limit a model could
# generate whitespace until it runs out of tokens.
JSON_OPTIONS: dict[str, Any] = {"whitespace_pattern": r"(?: |\n[ \t]{0,40})?"}


def to_grammar(spec: ConstraintSpec, *, marker: str, marker_id: int) -> str:
    """The grammar of ``spec``.  ``marker``, ``marker_id``: the tool-call marker token.

    Raises: RowError.
    """
    matcher = llguidance.LLMatcher
    if spec.kind == "json_object":
        return json_grammar({"type": "object"})
    if spec.kind == "json_schema":
        return json_grammar(checked_schema(json.loads(spec.text)))
    if spec.kind == "regex":
        return str(matcher.grammar_from_lark(regex_as_lark(spec.text)))
    if spec.kind == "lark":
        _check_embedded_schemas(spec.text)
        _check_pieces(spec.text)
        return str(matcher.grammar_from_lark(spec.text))
    if spec.kind == "gbnf":
        return str(matcher.grammar_from_lark(gbnf_to_lark(spec.text)))
    lark = tool_call_grammar(
        json.loads(spec.text),
        is_required=spec.kind == "tool_call_required",
        marker=marker,
        marker_id=marker_id,
        json_options=JSON_OPTIONS,
    )
    return str(matcher.grammar_from_lark(lark))


def regex_as_lark(expression: str) -> str:
    """A grammar for one regular expression.

    ``\\d \\w \\s`` match ASCII only, as in JSON Schema: other digits and letters depend on the
    Unicode version of the reader of the answer.

    Raises: RowError ``invalid_regex``.
    """
    if (len(expression) - len(expression.rstrip("\\"))) % 2:
        raise RowError("invalid_regex", "regex: ends in a backslash that escapes nothing")
    return f"start: /{llguidance.regex_to_lark(expression, 'dws')}/"


def json_grammar(schema: Any) -> str:
    """The grammar of the JSON values that a checked schema allows."""
    if schema is False:
        raise RowError("invalid_schema", "json_schema: false matches no value")
    text = json.dumps({} if schema is True else schema)
    return str(llguidance.LLMatcher.grammar_from_json_schema(text, overrides=JSON_OPTIONS))


_LARK_PIECES = re.compile(
    r'//[^\n]*|#[^\n]*|"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n])+/|(?P<token><[^>\s]*>)'
    r"|(?P<option>%llguidance\b)|(?P<attribute>\b(?:max_tokens|stop|temperature)\s*=)"
)
_NOT_ENFORCED = {
    "token": "the token {} is not text; write the text",
    "option": "{} sets options of a library; write the grammar without it",
    "attribute": "the attribute {} cannot be enforced; use a regular expression instead",
}


def _check_pieces(lark: str) -> None:
    """Refuse control tokens, which would end the answer early, attributes that count tokens or set
    a temperature, and options."""
    for found in _LARK_PIECES.finditer(lark):
        if found.lastgroup:
            line = lark.count("\n", 0, found.start()) + 1
            reason = _NOT_ENFORCED[found.lastgroup].format(found[0][:40])
            raise RowError("invalid_grammar", f"lark line {line}: {reason}")


def _check_embedded_schemas(lark: str) -> None:
    """Check the schemas inside a Lark grammar, so that no keyword is ignored silently."""
    for found in re.finditer(r"%json\s*", lark):
        try:
            schema, _ = json.JSONDecoder().raw_decode(lark, found.end())
        except ValueError:
            continue  # llguidance reports it with its position
        checked_schema(schema)
        if _is_relaxed(schema):
            raise RowError(
                "unsupported_keyword",
                "lark: x-guidance in %json may not relax a schema (lenient, coerce_one_of)",
            )


def _is_relaxed(schema: Any) -> bool:
    """Whether an llguidance option anywhere inside accepts more than the schema does."""
    if isinstance(schema, dict):
        options = schema.get("x-guidance")
        relaxes = isinstance(options, dict) and bool({"lenient", "coerce_one_of"} & options.keys())
        return relaxes or any(map(_is_relaxed, schema.values()))
    return isinstance(schema, list) and any(map(_is_relaxed, schema))
