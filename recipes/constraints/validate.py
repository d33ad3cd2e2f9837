"""Judges a finished answer once more, on its own text."""

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

from .gbnf_lark import gbnf_to_lark
from .grammar import regex_as_lark
from .spec import JSON_KINDS, TOOL_KINDS, ConstraintSpec, parse_json
from .tool_calls import checked_parameters
from .trial_process import byte_tokenizer

Verdict = Literal["valid", "invalid", "incomplete"]


def judge(spec: ConstraintSpec, answer: Answer, finish_reason: str) -> Verdict:
    """``incomplete`` if the answer was cut or never left its reasoning, else whether it matches."""
    is_open = answer.is_reasoning_unfinished or answer.is_tool_call_unfinished
    if finish_reason not in ("stop", "tool_calls") or is_open:
        return "incomplete"
    if spec.kind in TOOL_KINDS:
        return "valid" if _calls_match(spec, answer.tool_calls) else "invalid"
    return "valid" if matches(spec, answer.content) else "invalid"


def matches(spec: ConstraintSpec, text: str) -> bool:
    """Whether ``text`` as a whole meets a JSON, regex or grammar constraint."""
    if spec.kind in JSON_KINDS:
        return _json_matches(spec, text)
    matcher = _prototype(spec).deep_copy()
    data = text.encode("utf-8", "replace")
    is_read = matcher.try_consume_tokens(list(data)) == len(data)
    return is_read and bool(matcher.is_accepting()) and not matcher.is_error()


def _json_matches(spec: ConstraintSpec, text: str) -> bool:
    try:
        value = parse_json(text, "answer", parse_float=_exact)
    except RowError:
        return False
    if spec.kind == "json_object":
        return isinstance(value, dict)
    return bool(_validator(spec.text).is_valid(value))


def _calls_match(spec: ConstraintSpec, calls: Sequence[ParsedToolCall]) -> bool:
    tools = {tool["function"]["name"]: tool["function"] for tool in json.loads(spec.text)}
    if not calls:
        return spec.kind == "tool_call"
    return all(call.name in tools and _call_matches(tools[call.name], call) for call in calls)


def _call_matches(function: dict[str, Any], call: ParsedToolCall) -> bool:
    try:
        arguments = parse_json(call.arguments, "arguments", parse_float=_exact)
    except RowError:
        return False
    if not isinstance(arguments, dict) or not call.is_finished:
        return False
    if not function.get("strict"):
        return True
    schema = {**checked_parameters(function), "additionalProperties": False}
    return bool(_validator(json.dumps(schema)).is_valid(arguments))


def _exact(text: str) -> Fraction | int | float:
    """The decimal number itself: as a binary fraction 0.07 would be no multiple of 0.01."""
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
    return draft(schema, format_checker=draft.FORMAT_CHECKER)


@lru_cache(maxsize=1024)
def _prototype(spec: ConstraintSpec) -> Any:
    matcher = llguidance.LLMatcher
    to_lark = {"regex": regex_as_lark, "gbnf": gbnf_to_lark}.get(spec.kind, str)
    grammar = matcher.grammar_from_lark(to_lark(spec.text))
    return matcher(byte_tokenizer(), grammar, log_level=0)
