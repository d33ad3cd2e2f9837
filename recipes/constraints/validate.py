"""Validates a finished answer against its constraint, from its text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal

import jsonschema
import jsonschema.validators
import llguidance

from deepinfer.errors import RowError
from deepinfer.recipes.types import Answer, ParsedToolCall

from .grammar import to_grammar
from .patterns import KEYWORDS
from .spec import (
    JSON_KINDS,
    TOOL_KINDS,
    ConstraintSpec,
    any_json_object,
    json_schema,
    strict_json,
)
from .tool_calls import checked_parameters
from .trial_process import byte_tokenizer

Verdict = Literal["valid", "invalid", "incomplete"]


def judge(spec: ConstraintSpec, answer: Answer, finish_reason: str) -> Verdict:
    """``incomplete`` if the answer was cut off or never ended its reasoning; else whether it
    matches."""
    is_open = answer.is_reasoning_unfinished or answer.is_tool_call_unfinished
    if finish_reason not in ("stop", "tool_calls") or is_open:
        return "incomplete"
    if spec.kind in TOOL_KINDS:
        return "valid" if _calls_match(spec, answer.tool_calls) else "invalid"
    return "valid" if matches(spec, answer.content) else "invalid"


def matches(spec: ConstraintSpec, text: str) -> bool:
    """Whether the whole of ``text`` satisfies a JSON, regex or grammar constraint."""
    if spec.kind not in JSON_KINDS:
        return _grammar_takes(spec, text)
    try:
        value = strict_json(text, "answer", parse_float=_exact)
        if spec.kind == "json_object":
            return isinstance(value, dict)
        return bool(_validator(spec.text).is_valid(value))
    except RecursionError:  # deeper than Python's own stack
        return _grammar_takes(spec, text)
    except RowError:
        return False


def _grammar_takes(spec: ConstraintSpec, text: str) -> bool:
    matcher = _prototype(spec).deep_copy()
    data = text.encode("utf-8", "replace")
    is_read = matcher.try_consume_tokens(list(data)) == len(data)
    return is_read and bool(matcher.is_accepting()) and not matcher.is_error()


def _calls_match(spec: ConstraintSpec, calls: Sequence[ParsedToolCall]) -> bool:
    tools = {tool["function"]["name"]: tool["function"] for tool in json.loads(spec.text)}
    if not calls:
        return spec.kind == "tool_call"
    return all(call.name in tools and _call_matches(tools[call.name], call) for call in calls)


def _call_matches(function: dict[str, Any], call: ParsedToolCall) -> bool:
    if not call.is_finished:
        return False
    if not function.get("strict"):
        return matches(any_json_object(), call.arguments)
    schema = {**checked_parameters(function), "type": "object", "additionalProperties": False}
    return matches(json_schema(schema), call.arguments)


def _exact(text: str) -> Fraction | int | float:
    """The exact decimal number: as binary floats, 0.07 would not be a multiple of 0.01."""
    nearest = float(text)
    if not 1e-300 < abs(nearest) < 1e300:
        return nearest  # its fraction could have millions of digits
    number = Fraction(text)
    return number.numerator if number.denominator == 1 else number


@lru_cache(maxsize=1024)
def _validator(schema_text: str) -> Any:
    schema = json.loads(schema_text, parse_float=_exact)
    draft = jsonschema.validators.validator_for(
        schema, default=jsonschema.validators.Draft202012Validator
    )
    kind = jsonschema.validators.extend(draft, KEYWORDS)
    return kind(schema, format_checker=draft.FORMAT_CHECKER)


@lru_cache(maxsize=1024)
def _prototype(spec: ConstraintSpec) -> Any:
    grammar = to_grammar(spec, marker="", marker_id=0)  # the marker is only used by tool calls
    return llguidance.LLMatcher(byte_tokenizer(), grammar, log_level=0)
