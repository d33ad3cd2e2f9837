"""Thinking mode of a chat row: from its own fields, else the run's default, else the recipe's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deepinfer.errors import RowError

from .types import THINKING_CHOICES, Thinking


def thinking_fields(fields: Mapping[str, Any], default: Thinking | None) -> dict[str, Any]:
    """The recipe's ``thinking`` and ``reasoning_effort`` fields for a chat row.

    ``default``: for rows that set neither; a row's own fields in the API's form are kept.
    Raises: RowError ``invalid_type`` or ``invalid_value``.
    """
    own = fields.get("thinking")
    if own is None and fields.get("reasoning_effort") is None:
        return {} if default is None else _spell_out(default)
    if own is None or isinstance(own, Mapping):
        return {}
    if isinstance(own, bool):
        return _spell_out("default" if own else "off")
    if own not in THINKING_CHOICES:
        raise RowError(
            "invalid_value" if isinstance(own, str) else "invalid_type",
            f"thinking: expected one of {', '.join(THINKING_CHOICES)}, got {str(own)[:40]!r}",
        )
    spelled = _spell_out(own)
    if fields.get("reasoning_effort") is not None:
        spelled.pop("reasoning_effort", None)
    return spelled


def _spell_out(thinking: Thinking) -> dict[str, Any]:
    if thinking == "off":
        return {"thinking": {"type": "disabled"}}
    effort = {} if thinking == "default" else {"reasoning_effort": thinking}
    return {"thinking": {"type": "enabled"}, **effort}
