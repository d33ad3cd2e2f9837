"""Validators for the JSON Schema keywords with regular expressions, without backtracking.

``jsonschema`` uses Python's ``re``, which can take exponential time even on short texts.  These
take time linear in the length of the text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import llguidance
from jsonschema.exceptions import ValidationError

from .grammar import json_grammar
from .trial_process import byte_tokenizer


def _pattern(validator: Any, pattern: str, value: Any, schema: Any) -> Iterator[ValidationError]:
    if isinstance(value, str) and not is_found(pattern, value):
        yield ValidationError(f"{value!r} does not match {pattern!r}")


def _pattern_properties(
    validator: Any, schemas: Mapping[str, Any], value: Any, schema: Any
) -> Iterator[ValidationError]:
    if isinstance(value, dict):
        for pattern, inner in schemas.items():
            for name in value:
                if is_found(pattern, name):
                    yield from validator.descend(value[name], inner, path=name)


def _additional_properties(
    validator: Any, inner: Any, value: Any, schema: Mapping[str, Any]
) -> Iterator[ValidationError]:
    if not isinstance(value, dict):
        return
    patterns = schema.get("patternProperties", {})
    for name in value.keys() - schema.get("properties", {}).keys():
        if not any(is_found(pattern, name) for pattern in patterns):
            yield from validator.descend(value[name], inner, path=name)


KEYWORDS = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
}


def is_found(pattern: str, text: str) -> bool:
    """Whether ``pattern`` matches somewhere in ``text``."""
    matcher = _prototype(pattern).deep_copy()
    spelled = json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")  # as masks require
    data = spelled.encode("utf-8", "replace")
    is_read = matcher.try_consume_tokens(list(data)) == len(data)
    return is_read and bool(matcher.is_accepting())


@lru_cache(maxsize=1024)
def _prototype(pattern: str) -> Any:
    grammar = json_grammar({"type": "string", "pattern": pattern})
    return llguidance.LLMatcher(byte_tokenizer(), grammar, log_level=0)
