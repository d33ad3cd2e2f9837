"""Names of fields that a row may have: which mean something where, which are refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from deepinfer.errors import RowError

from .constraints.fields import CONSTRAINT_FIELDS
from .sampling_fields import SAMPLING_FIELDS

PROMPT_FIELDS = ("prompt", "prompt_token_ids", "messages")
# In the order in which the recipe reads them: which of two mistakes is named must not depend on
# the order of a set, which differs from process to process.
CHAT_FIELDS = ("tools", "tool_choice", "response_format", "reasoning_effort", "thinking")
_ID_FIELDS = frozenset({"id", "custom_id"})
_BATCH_FIELDS = _ID_FIELDS | {"method", "url", "body"}
# Fields of the API that cannot change an offline answer.
_WITHOUT_EFFECT = frozenset(
    {"model", "user", "metadata", "store", "stream", "stream_options", "service_tier"}
)
# Fields that would change the answer if they were honoured; dropping them would be a lie.  What
# other tools call a constraint stands with our name for it.
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
# All names by which a row can change its answer.
KNOWN_FIELDS = frozenset(
    {*PROMPT_FIELDS, *CHAT_FIELDS, *SAMPLING_FIELDS, *CONSTRAINT_FIELDS, "raw", "parse_special"}
)


def unknown_fields(fields: Mapping[str, Any], known: Iterable[str]) -> tuple[str, ...]:
    """Those that have no effect, in their order; null is as good as absent."""
    return tuple(str(n) for n in fields if n not in known and fields[n] is not None)


def refuse_unsupported(fields: Mapping[str, Any], *, is_completion: bool = False) -> None:
    """Raises: RowError ``unsupported`` for a field that asks for what cannot be done."""
    unsupported = {**_UNSUPPORTED, **(_NOT_IN_COMPLETIONS if is_completion else {})}
    for name, instead in unsupported.items():
        if _asks(fields, name):
            what = f"use {instead}" if instead else "remove it"
            raise RowError("unsupported", f"{name} is not supported; {what}")


def refuse_calls(fields: Mapping[str, Any]) -> None:
    """Raises: RowError ``unsupported`` if plain text or token ids are to be answered by a call."""
    tools = fields.get("tools")
    functions = [t.get("function") for t in _items(tools) if isinstance(t, Mapping)]
    is_strict = any(isinstance(f, Mapping) and f.get("strict") for f in functions)
    choice = fields.get("tool_choice")
    if is_strict or choice == "required" or isinstance(choice, Mapping):
        name = "tools" if is_strict else "tool_choice"
        raise RowError(
            "unsupported", f"{name}: only a chat (prompt or messages) is answered by tool calls"
        )


def beside_body(line: Mapping[str, Any]) -> tuple[str, ...]:
    """Fields of a batch line beside its body, which have no effect.

    Raises: RowError ``invalid_value`` for one that says what the answer must be.
    """
    for name in (*CONSTRAINT_FIELDS, "tools", "tool_choice", *_UNSUPPORTED):
        if _asks(line, name):
            raise RowError(
                "invalid_value", f"{name} beside the body of a batch line; put it into it"
            )
    return unknown_fields(line, _BATCH_FIELDS | _WITHOUT_EFFECT | _UNSUPPORTED.keys())


def _asks(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name)
    return value is not None and value is not False and value not in ("", [])


def _items(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []
