"""Prompts as Python users write them, to the rows that files hold."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

from deepinfer.engine.types import SamplingParams
from deepinfer.errors import ConfigError, RowError
from deepinfer.recipes.constraints.fields import CONSTRAINT_FIELDS, field_constraint
from deepinfer.recipes.constraints.spec import ConstraintSpec

Prompt = str | Sequence[int] | Mapping[str, Any]


def prompt_rows(prompts: Prompt | Sequence[Prompt]) -> list[Mapping[str, Any]]:
    """One row per prompt: a string, a list of token ids or a row, alone or in a list.

    Raises: ConfigError that names the prompt that is none of these.
    """
    if isinstance(prompts, str | Mapping) or _is_token_ids(prompts):
        return [_row(0, prompts)]
    try:
        return [_row(place, prompt) for place, prompt in enumerate(prompts)]
    except TypeError as error:
        raise ConfigError(
            f"prompts: expected a string or a list, got {type(prompts).__name__}"
        ) from error


def sampling_for_each(
    sampling_params: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int
) -> list[SamplingParams]:
    """One SamplingParams per prompt.  Raises: ConfigError if a list has another length."""
    if sampling_params is None or isinstance(sampling_params, SamplingParams):
        return [sampling_params or SamplingParams()] * num_prompts
    if not isinstance(sampling_params, Sequence) or isinstance(sampling_params, str | bytes):
        kind = type(sampling_params).__name__
        raise ConfigError(f"sampling_params: expected a SamplingParams or a list, got {kind}")
    if len(sampling_params) != num_prompts:
        raise ConfigError(
            f"{len(sampling_params)} sampling_params for {num_prompts} prompts; "
            "give one for all or one for each"
        )
    for place, params in enumerate(sampling_params):
        if not isinstance(params, SamplingParams):
            raise ConfigError(
                f"sampling_params[{place}]: expected a SamplingParams, got {type(params).__name__}"
            )
    return list(sampling_params)


def numbered_row(pair: Any, defaults: SamplingParams) -> tuple[int, Any, SamplingParams]:
    """What ``stream`` takes, with its sampling.  Raises: ConfigError if it is no pair."""
    try:
        if isinstance(pair, tuple | list):
            number, row = pair
            return operator.index(number), row, defaults
    except (TypeError, ValueError):
        pass
    raise ConfigError(
        "stream: expected (row number, row) pairs, such as enumerate(rows) gives; "
        f"got {repr(pair)[:60]}"
    )


def run_constraint(fields: Mapping[str, Any] | None) -> ConstraintSpec | None:
    """The constraint of rows without one of their own, from the fields that a row would have.

    Raises: ConfigError if they say none or more than one, or something wrong.
    """
    if fields is None:
        return None
    if not isinstance(fields, Mapping) or not set(fields) <= set(CONSTRAINT_FIELDS):
        raise ConfigError(f"constraint: expected one of the fields {', '.join(CONSTRAINT_FIELDS)}")
    try:
        return field_constraint(fields)
    except RowError as error:
        raise ConfigError(f"constraint: {error}") from error


def _row(place: int, prompt: Any) -> Mapping[str, Any]:
    if isinstance(prompt, str):
        return {"prompt": prompt}
    if isinstance(prompt, Mapping):
        return prompt
    if isinstance(prompt, Sequence) and not isinstance(prompt, bytes):
        return {"prompt_token_ids": list(prompt)}
    raise ConfigError(
        f"prompts[{place}]: expected a string, a list of token ids or a row, "
        f"got {type(prompt).__name__}"
    )


def _is_token_ids(prompts: Any) -> bool:
    return isinstance(prompts, Sequence) and len(prompts) > 0 and isinstance(prompts[0], int)
