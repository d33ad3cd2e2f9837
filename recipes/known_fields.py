"""The known fields of rows: which have an effect in which kind of row, and which are refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from deepinfer.errors import RowError

from .constraints.fields import CONSTRAINT_FIELDS
from .sampling_fields import SAMPLING_FIELDS

PROMPT_FIELDS = ("prompt", "prompt_token_ids", "messages")
# In the order in which the recipe reads them: which of two errors is reported must not depend on
# the order of a set, which differs between processes.
CHAT_FIELDS = ("tools", "tool_choice", "response_format", "reasoning_effort", "thinking")
_ID_FIELDS = frozenset({"id", "custom_id"})
_BATCH_FIELDS = _ID_FIELDS | {"method", "url", "body"}
# Fields of the API that cannot change an offline answer.
_WITHOUT_EFFECT = frozenset(
    {"model", "user", "metadata", "store", "stream", "stream_options", "service_tier"}
)
# Fields that would change the answer but are not supported, so they must not be ignored; with the
# field to use instead, if there is one.
_UNSUPPORTED: Mapping[str, str] = {
    **dict.fromkeys(("functions", "function_call"), "tools and tool_choice"),
    **dict.fromkeys(("guided_json", "json_schema"), "response_format"),
    **dict.fromkeys(("guided_regex", "guided_choice"), "regex"),
    **dict.fromkeys(("guided_grammar", "ebnf"), "grammar"),
    **dict.fromkeys(("structured_outputs", "structural_tag"), "response_format, regex or grammar"),
    "extra_body": "fields of the row itself",
    **dict.fromkeys(("modalities", "audio", "prediction", "web_search_options"), ""),
}
_NOT_IN_COMPLETIONS: Mapping[str, str] = dict.fromkeys(("echo", "suffix"), "")
_EVERYWHERE = {*SAMPLING_FIELDS, *CONSTRAINT_FIELDS, *_ID_FIELDS, *_WITHOUT_EFFECT, *_UNSUPPORTED}
KNOWN_IN_CHAT = frozenset({*_EVERYWHERE, *CHAT_FIELDS, "prompt", "messages", "raw"})
KNOWN_IN_TEXT = frozenset({*_EVERYWHERE, "prompt", "prompt_token_ids", "raw", "parse_special"}) | {
    "echo",
    "suffix",
    "best_of",
}
# All fields by which a row can change its answer.
KNOWN_FIELDS = frozenset(
    {*PROMPT_FIELDS, *CHAT_FIELDS, *SAMPLING_FIELDS, *CONSTRAINT_FIELDS, "raw", "parse_special"}
)


def unknown_fields(fields: Mapping[str, Any], known: Iterable[str]) -> tuple[str, ...]:
    """Fields without effect, in their order; null counts as absent."""
    return tuple(str(n) for n in fields if n not in known and fields[n] is not None)


def refuse_unsupported(fields: Mapping[str, Any], *, is_completion: bool = False) -> None:
    """Raises: RowError ``unsupported`` if a field that is not supported is set."""
    unsupported = {**_UNSUPPORTED, **(_NOT_IN_COMPLETIONS if is_completion else {})}
    for name, instead in unsupported.items():
        if _asks(fields, name):
            what = f"use {instead}" if instead else "remove it"
            raise RowError("unsupported", f"{name} is not supported; {what}")


def refuse_calls(fields: Mapping[str, Any]) -> None:
    """Raises: RowError ``unsupported`` if a row of plain text or token ids requires tool calls."""
    tools = fields.get("tools")
    functions = [t.get("function") for t in _items(tools) if isinstance(t, Mapping)]
    is_strict = any(isinstance(f, Mapping) and f.get("strict") for f in functions)
    choice = fields.get("tool_choice")
    if is_strict or choice == "required" or isinstance(choice, Mapping):
        name = "tools" if is_strict else "tool_choice"
        raise RowError(
            "unsupported", f"{name}: only chat rows (prompt or messages) support tool calls"
        )


def beside_body(line: Mapping[str, Any]) -> tuple[str, ...]:
    """Fields without effect of a batch line, outside of its body.

    Raises: RowError ``invalid_value`` for one that would constrain the answer.
    """
    for name in (*CONSTRAINT_FIELDS, "tools", "tool_choice", *_UNSUPPORTED):
        if _asks(line, name):
            raise RowError(
                "invalid_value", f"{name} is outside the body of a batch line; move it there"
            )
    return unknown_fields(line, _BATCH_FIELDS | _WITHOUT_EFFECT | _UNSUPPORTED.keys())


def _asks(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name)
    return value is not None and value is not False and value not in ("", [])


def _items(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []
