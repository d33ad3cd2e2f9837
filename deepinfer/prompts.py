"""Prompts as Python users write them, to the rows that files hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deepinfer.engine.types import SamplingParams

from .errors import ConfigError

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
    if len(sampling_params) != num_prompts:
        raise ConfigError(
            f"{len(sampling_params)} sampling_params for {num_prompts} prompts; "
            "give one for all or one for each"
        )
    return list(sampling_params)


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
