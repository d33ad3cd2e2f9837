"""Converts prompts in the Python API to rows as in files."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any

from deepinfer.engine.types import SamplingParams
from deepinfer.errors import ConfigError, RowError
from deepinfer.recipes.constraints.fields import CONSTRAINT_FIELDS, field_constraint
from deepinfer.recipes.constraints.spec import ConstraintSpec

Prompt = str | Sequence[int] | Mapping[str, Any]


def prompt_rows(prompts: Prompt | Sequence[Prompt]) -> list[Mapping[str, Any]]:
    """One row per prompt: a string, a list of token ids or a row, alone or in a list.

    Raises: ConfigError that names a prompt which is none of these.
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
        raise _other_number(len(sampling_params), num_prompts)
    for place, params in enumerate(sampling_params):
        if not isinstance(params, SamplingParams):
            raise ConfigError(
                f"sampling_params[{place}]: expected a SamplingParams, got {type(params).__name__}"
            )
    return list(sampling_params)


def numbered_rows(
    prompts: Prompt | Iterable[Prompt | tuple[int, Any]],
    sampling_params: SamplingParams | Sequence[SamplingParams] | None,
) -> Iterator[tuple[int, Any, SamplingParams]]:
    """The input of ``stream``, pulled lazily: prompts as in ``generate``, numbered by position, or
    (number, prompt) pairs; each with its sampling.

    An invalid prompt in a pair is an error of its row.  Raises: ConfigError, immediately or when
    the iterator gets there, for other invalid prompts and a wrong number of sampling_params.
    """
    is_one = isinstance(prompts, str | Mapping) or _is_token_ids(prompts)
    several: Any = [prompts] if is_one else prompts
    try:
        places = enumerate(several)
    except TypeError as error:
        kind = type(prompts).__name__
        raise ConfigError(f"prompts: expected a string or several prompts, got {kind}") from error
    if sampling_params is None or isinstance(sampling_params, SamplingParams):
        return _numbered(places, sampling_params or SamplingParams())
    counted = several if isinstance(several, Sized) else sampling_params  # assume it fits
    num = len(counted) if isinstance(counted, Sized) else 0
    return _numbered(places, sampling_for_each(sampling_params, num))


def _numbered(
    places: Iterator[tuple[int, Any]], params: SamplingParams | Sequence[SamplingParams]
) -> Iterator[tuple[int, Any, SamplingParams]]:
    num = 0
    for place, prompt in places:
        num = place + 1
        if isinstance(params, SamplingParams):
            yield *_numbered_row(place, prompt), params
        elif place < len(params):
            yield *_numbered_row(place, prompt), params[place]
        else:
            raise _other_number(len(params), f"more than {place}")
    if not isinstance(params, SamplingParams) and num < len(params):
        raise _other_number(len(params), str(num))


def _other_number(num_params: int, num_prompts: int | str) -> ConfigError:
    return ConfigError(
        f"{num_params} sampling_params for {num_prompts} prompts; give one for all or one for each"
    )


def _numbered_row(place: int, prompt: Any) -> tuple[int, Any]:
    """A (number, prompt) pair, or a prompt at its position; two whole numbers are token ids."""
    if isinstance(prompt, tuple | list) and len(prompt) == 2:
        number, row = prompt
        if hasattr(number, "__index__") and not hasattr(row, "__index__"):
            is_prompt = isinstance(row, str) or _is_list(row)
            return operator.index(number), _row(place, row) if is_prompt else row
    return place, _row(place, prompt)


def run_constraint(fields: Mapping[str, Any] | None) -> ConstraintSpec | None:
    """The constraint for rows without one of their own, from the same fields as in a row.

    Raises: ConfigError unless they define exactly one valid constraint.
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
    if _is_list(prompt):
        return {"prompt_token_ids": list(prompt)}
    raise ConfigError(
        f"prompts[{place}]: expected a string, a list of token ids or a row, "
        f"got {type(prompt).__name__}"
    )


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _is_token_ids(prompts: Any) -> bool:
    return isinstance(prompts, Sequence) and len(prompts) > 0 and isinstance(prompts[0], int)
