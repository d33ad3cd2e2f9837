"""Parses a row of an input file: its kind, its prompt, its own settings.

From JSON to plain data, before tokenization.  Every fault is a RowError with a stable kind:
``invalid_type missing_field unknown_kind ambiguous_kind unknown_url invalid_value unsupported
empty_prompt``.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from deepinfer.errors import RowError, json_name

from .constraints.fields import CONSTRAINT_FIELDS, field_constraint, schema_format
from .constraints.spec import ConstraintSpec
from .known_fields import (
    CHAT_FIELDS,
    KNOWN_IN_CHAT,
    KNOWN_IN_TEXT,
    PROMPT_FIELDS,
    beside_body,
    refuse_calls,
    refuse_unsupported,
    unknown_fields,
)
from .sampling_fields import sampling_overrides
from .thinking import thinking_fields
from .types import RowKind, Thinking

CHAT_URL = "/v1/chat/completions"
COMPLETION_URL = "/v1/completions"


_ID_FIELDS = ("custom_id", "id")


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Plain text after begin-of-text.  ``parse_special``: spellings of control tokens become
    control tokens."""

    text: str
    parse_special: bool = False


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Token ids as given."""

    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """The body of a chat request for the recipe, without the model name."""

    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedRow:
    """A parsed row, not yet encoded.

    ``constraint``: from the row's own fields; a chat's ``response_format`` and ``tools`` are left
    to the recipe.  ``has_form``: the row has one of these fields.  ``ignored``: the names of fields
    without effect.
    """

    row_id: str
    kind: RowKind
    prompt: TextPrompt | TokenPrompt | ChatPrompt
    sampling: Mapping[str, Any]
    constraint: ConstraintSpec | None = None
    has_form: bool = False
    ignored: tuple[str, ...] = ()

    def held_to(self, spec: ConstraintSpec) -> ParsedRow:
        """The same row with this constraint."""
        if spec.kind == "json_schema" and isinstance(self.prompt, ChatPrompt):
            body = {**self.prompt.body, "response_format": schema_format(spec)}
            return replace(self, prompt=ChatPrompt(body))
        return replace(self, constraint=spec)


def parse_row(
    row: Mapping[str, Any], number: int, *, raw: bool = False, thinking: Thinking | None = None
) -> ParsedRow:
    """Parse one row.  ``raw`` and ``thinking``: defaults for rows that do not set them.

    Raises: RowError.
    """
    if not isinstance(row, Mapping):
        raise RowError("invalid_type", f"expected a JSON object, got {json_name(row)}")
    parsed = _parse(row, row_id(row, number), raw, thinking)
    nameless = tuple(n for n in _ID_FIELDS if row.get(n) is not None and _id_text(row[n]) is None)
    return replace(parsed, ignored=(*nameless, *parsed.ignored))


def _parse(
    row: Mapping[str, Any], identity: str, raw: bool, thinking: Thinking | None
) -> ParsedRow:
    if _is_batch_line(row):
        return _parse_batch_line(row, identity, thinking)
    field = _prompt_field(row)
    if field == "messages":
        return _chat_row(row, identity, "messages", thinking)
    if field == "prompt_token_ids":
        return _token_row(row, identity, "prompt_token_ids", row[field])
    is_raw = _flag(row, "raw", raw)
    if is_raw:
        return _text_row(row, identity, "raw")
    return _chat_row(row, identity, "prompt", thinking)


def row_id(row: object, number: int) -> str:
    """``custom_id`` or ``id`` as text; the row's number if it has neither or is not an object."""
    if isinstance(row, Mapping):
        for field in _ID_FIELDS:
            text = _id_text(row.get(field))
            if text is not None:
                return text
    return str(number)


def _id_text(value: object) -> str | None:
    """An id as text; whole floats as integers, since tables convert columns with missing values."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else None


def _is_batch_line(row: Mapping[str, Any]) -> bool:
    return isinstance(row.get("body"), Mapping) or ("url" in row and "custom_id" in row)


def _prompt_field(row: Mapping[str, Any]) -> str:
    present = [field for field in PROMPT_FIELDS if row.get(field) is not None]
    if len(present) > 1:
        raise RowError("ambiguous_kind", f"{' and '.join(present)} in one row; keep one of them")
    if present:
        return present[0]
    nulls = [field for field in PROMPT_FIELDS if field in row]
    if nulls:
        raise RowError("missing_field", f"{nulls[0]} is null")
    others = [str(name) for name in row if name not in ("id", "custom_id")]
    names = ", ".join(map(repr, others[:8])) or "none"
    near = [(o, *difflib.get_close_matches(o, PROMPT_FIELDS, 1, 0.8)) for o in others[:8]]
    meant = next((f"did you mean {found[1]}?" for found in near if len(found) > 1), None)
    raise RowError(
        "unknown_kind",
        "expected one of prompt, prompt_token_ids, messages, or a batch line with url and body; "
        f"the fields are: {names[:200]} ({meant or 'map a column with --map prompt=NAME'})",
    )


def _parse_batch_line(
    row: Mapping[str, Any], identity: str, thinking: Thinking | None
) -> ParsedRow:
    present = [field for field in PROMPT_FIELDS if row.get(field) is not None]
    if present:
        raise RowError("ambiguous_kind", f"{present[0]} beside the body of a batch line; keep one")
    beside = beside_body(row)
    parsed = _parse_body(row, identity, thinking)
    return replace(parsed, ignored=(*parsed.ignored, *beside))


def _parse_body(row: Mapping[str, Any], identity: str, thinking: Thinking | None) -> ParsedRow:
    body = row.get("body")
    if body is None:
        raise RowError("missing_field", "a batch line needs a body")
    if not isinstance(body, Mapping):
        raise RowError("invalid_type", f"body: expected an object, got {json_name(body)}")
    if row.get("method") not in (None, "POST"):
        raise RowError("invalid_value", f"method: expected POST, got {str(row['method'])[:40]!r}")
    url = row.get("url")
    if url == CHAT_URL:
        return _chat_row(body, identity, "batch_chat", thinking)
    if url == COMPLETION_URL:
        return _completion_row(body, identity)
    if url is None:
        raise RowError("missing_field", f"url is missing; expected {CHAT_URL} or {COMPLETION_URL}")
    raise RowError(
        "unknown_url", f"url: expected {CHAT_URL} or {COMPLETION_URL}, got {str(url)[:80]!r}"
    )


def _completion_row(body: Mapping[str, Any], identity: str) -> ParsedRow:
    refuse_unsupported(body, is_completion=True)
    if body.get("best_of") not in (None, 1, body.get("n")):
        raise RowError("unsupported", "best_of is not supported; use n, which returns all answers")
    prompt: Any = body.get("prompt")
    if _is_list(prompt) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if prompt is None:
        raise RowError("missing_field", "the body needs a prompt")
    if isinstance(prompt, str):
        return _text_row({**body, "prompt": prompt}, identity, "batch_completion")
    if _is_list(prompt) and not any(isinstance(item, str | list) for item in prompt):
        return _token_row(body, identity, "batch_completion", prompt)
    if _is_list(prompt):
        raise RowError(
            "unsupported", "prompt: several prompts in one line; write one line for each"
        )
    raise RowError("invalid_type", f"prompt: expected a string, got {json_name(prompt)}")


def _text_row(fields: Mapping[str, Any], identity: str, kind: RowKind) -> ParsedRow:
    text = fields["prompt"]
    if not isinstance(text, str):
        raise RowError("invalid_type", f"prompt: expected a string, got {json_name(text)}")
    if not text:
        raise RowError("empty_prompt", "prompt is the empty string")
    prompt = TextPrompt(text, _flag(fields, "parse_special", False))
    return _finish(fields, identity, kind, prompt, KNOWN_IN_TEXT)


def _token_row(fields: Mapping[str, Any], identity: str, kind: RowKind, ids: Any) -> ParsedRow:
    if not _is_list(ids):
        raise RowError(
            "invalid_type", f"prompt_token_ids: expected a list of ids, got {json_name(ids)}"
        )
    if not all(type(token_id) is int for token_id in ids):
        raise RowError("invalid_type", "prompt_token_ids: expected whole numbers only")
    if not ids:
        raise RowError("empty_prompt", "prompt_token_ids is empty")
    return _finish(fields, identity, kind, TokenPrompt(tuple(ids)), KNOWN_IN_TEXT)


def _chat_row(
    fields: Mapping[str, Any], identity: str, kind: RowKind, thinking: Thinking | None
) -> ParsedRow:
    if _flag(fields, "raw", False):
        raise RowError("invalid_value", "raw applies to prompt, not to messages")
    if kind == "prompt":
        messages: Any = [{"role": "user", "content": _user_text(fields["prompt"])}]
        thinking = thinking or "off"
    else:
        messages = _messages(fields)
    body: dict[str, Any] = {"messages": messages}
    body |= {name: fields[name] for name in CHAT_FIELDS if fields.get(name) is not None}
    body |= thinking_fields(fields, thinking)
    return _finish(fields, identity, kind, ChatPrompt(body), KNOWN_IN_CHAT)


def _user_text(prompt: object) -> str:
    if not isinstance(prompt, str):
        raise RowError("invalid_type", f"prompt: expected a string, got {json_name(prompt)}")
    if not prompt:
        raise RowError("empty_prompt", "prompt is the empty string")
    return prompt


def _messages(fields: Mapping[str, Any]) -> Sequence[Any]:
    messages: Sequence[Any] | None = fields.get("messages")
    if messages is None:
        raise RowError("missing_field", "messages is missing")
    if not _is_list(messages):
        raise RowError("invalid_type", f"messages: expected a list, got {json_name(messages)}")
    if not messages:
        raise RowError("empty_prompt", "messages is empty")
    return messages


def _finish(
    fields: Mapping[str, Any],
    identity: str,
    kind: RowKind,
    prompt: TextPrompt | TokenPrompt | ChatPrompt,
    known: frozenset[str],
) -> ParsedRow:
    refuse_unsupported(fields)
    if not isinstance(prompt, ChatPrompt):
        refuse_calls(fields)
    own = CONSTRAINT_FIELDS if not isinstance(prompt, ChatPrompt) else ("regex", "grammar")
    return ParsedRow(
        row_id=identity,
        kind=kind,
        prompt=prompt,
        sampling=sampling_overrides(fields),
        constraint=field_constraint(fields, own),
        has_form=any(fields.get(name) for name in (*CONSTRAINT_FIELDS, "tools")),
        ignored=unknown_fields(fields, known),
    )


def _flag(fields: Mapping[str, Any], name: str, default: bool) -> bool:
    value = fields.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise RowError("invalid_type", f"{name}: expected true or false, got {json_name(value)}")
    return value


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)
