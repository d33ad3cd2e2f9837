"""A row's effective sampling: run defaults, its own fields, the recipe, the context."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from deepinfer.engine.types import SamplingParams
from deepinfer.errors import ConfigError, RowError
from deepinfer.recipes.chat import thinking_sampling
from deepinfer.recipes.types import EncodedRow


def effective_sampling(
    row: EncodedRow, defaults: SamplingParams, *, max_model_len: int
) -> tuple[SamplingParams, dict[str, str]]:
    """Sampling for ``row``, and notes on every value that differs from what was asked for.

    Raises: RowError if a value is out of range or contradicts others.
    """
    changes: dict[str, Any] = dict(row.sampling)
    notes: dict[str, str] = {}
    if row.answer_format.is_thinking:
        _apply_thinking(changes, notes, defaults)
    _fit_context(changes, notes, defaults, max_model_len - len(row.prompt_token_ids))
    try:
        sampling = replace(defaults, **changes)
    except ConfigError as error:
        raise RowError("invalid_value", str(error)) from error
    if sampling.max_tokens is not None and sampling.min_tokens > sampling.max_tokens:
        raise RowError(
            "invalid_value",
            f"min_tokens={sampling.min_tokens} is more than max_tokens={sampling.max_tokens}",
        )
    if sampling.min_tokens and row.constraint is not None:
        raise RowError(
            "invalid_value",
            f"min_tokens={sampling.min_tokens}: cannot be combined with a constraint, which "
            "determines where the answer may end; remove one of the two",
        )
    return sampling, notes


def _apply_thinking(
    changes: dict[str, Any], notes: dict[str, str], defaults: SamplingParams
) -> None:
    asked = {name: changes.get(name, getattr(defaults, name)) for name in ("temperature", "top_p")}
    used = dict(zip(asked, thinking_sampling(asked["temperature"], asked["top_p"]), strict=True))
    for name, value in used.items():
        if value != asked[name]:
            changes[name] = value
            notes[name] = f"thinking mode uses {value:g}; {asked[name]:g} was asked"


def _fit_context(
    changes: dict[str, Any], notes: dict[str, str], defaults: SamplingParams, room: int
) -> None:
    asked = changes.get("max_tokens", defaults.max_tokens)
    if asked is None or asked > room:
        changes["max_tokens"] = room
    if asked is not None and asked > room:
        notes["max_tokens"] = f"the context has room for {room} tokens; {asked} were asked"
