"""Sampling fields of a row, with native and OpenAI names, as overrides for ``SamplingParams``.

Types are checked here, ranges by ``SamplingParams``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from deepinfer.errors import RowError, json_name

MAX_SAMPLES = 128
MAX_STOP_STRINGS = 64
_TOKEN_ID = re.compile("0|[1-9][0-9]{0,18}")


def sampling_overrides(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling parameters set in ``fields``; absent and null fields are omitted.

    Raises: RowError ``invalid_type`` or ``invalid_value``.
    """
    overrides = {
        name: read(name, fields[name])
        for name, read in _READERS.items()
        if fields.get(name) is not None
    }
    _resolve_max_tokens(overrides)
    _resolve_logprobs(fields, overrides)
    return overrides


def _resolve_max_tokens(overrides: dict[str, Any]) -> None:
    alias = overrides.pop("max_completion_tokens", None)
    if alias is None:
        return
    if overrides.setdefault("max_tokens", alias) != alias:
        raise RowError(
            "invalid_value",
            f"max_tokens={overrides['max_tokens']} but max_completion_tokens={alias}; give one",
        )


def _resolve_logprobs(fields: Mapping[str, Any], overrides: dict[str, Any]) -> None:
    """Chat style is ``logprobs: true, top_logprobs: 3``; completions style is ``logprobs: 3``."""
    value = fields.get("logprobs")
    if value is None:
        overrides.update({"logprobs": True} if overrides.get("top_logprobs") else {})
    elif isinstance(value, bool):
        if not value and overrides.get("top_logprobs"):
            raise RowError("invalid_value", "top_logprobs needs logprobs: true")
        overrides["logprobs"] = value
    else:
        overrides["logprobs"] = True
        overrides.setdefault("top_logprobs", _integer("logprobs", value))


def _integer(name: str, value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # table columns with nulls arrive as floats
    if isinstance(value, float):
        raise RowError("invalid_type", f"{name}: expected a whole number, got {value!r}")
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong_type(name, value, "a whole number")
    if abs(value) >= 2**64:
        raise RowError("invalid_value", f"{name}: {str(value)[:20]}... is out of range")
    return value


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong_type(name, value, "a number")
    if abs(value) > 1e30 or not math.isfinite(value):
        raise RowError("invalid_value", f"{name}: expected a finite number, got {str(value)[:20]}")
    return float(value)


def _boolean(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _wrong_type(name, value, "true or false")
    return value


def _count_of_samples(name: str, value: Any) -> int:
    count = _integer(name, value)
    if not 1 <= count <= MAX_SAMPLES:
        raise RowError("invalid_value", f"n={count}: expected 1 to {MAX_SAMPLES}")
    return count


def _stop_strings(name: str, value: Any) -> tuple[str, ...]:
    stops = (value,) if isinstance(value, str) else value
    if not _is_list(stops) or not all(isinstance(stop, str) for stop in stops):
        raise _wrong_type(name, value, "a string or a list of strings")
    if len(stops) > MAX_STOP_STRINGS or not all(stops):
        raise RowError(
            "invalid_value", f"stop: expected at most {MAX_STOP_STRINGS} non-empty strings"
        )
    return tuple(stops)


def _token_ids(name: str, value: Any) -> tuple[int, ...]:
    if not _is_list(value):
        raise _wrong_type(name, value, "a list of token ids")
    return tuple(_integer(name, item) for item in value)


def _logit_bias(name: str, value: Any) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise _wrong_type(name, value, "an object of token id to number")
    if not all(_TOKEN_ID.fullmatch(str(key)) for key in value):
        raise RowError("invalid_value", 'logit_bias: keys must be token ids such as "1234"')
    biases = {int(key): _number(name, bias) for key, bias in value.items() if bias is not None}
    if any(abs(bias) > 100 for bias in biases.values()):
        raise RowError("invalid_value", "logit_bias: expected values from -100 to 100")
    return biases


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _wrong_type(name: str, value: Any, expected: str) -> RowError:
    return RowError("invalid_type", f"{name}: expected {expected}, got {json_name(value)}")


_READERS: dict[str, Callable[[str, Any], Any]] = {
    "temperature": _number,
    "top_p": _number,
    "top_k": _integer,
    "min_p": _number,
    "presence_penalty": _number,
    "frequency_penalty": _number,
    "repetition_penalty": _number,
    "logit_bias": _logit_bias,
    "seed": _integer,
    "max_tokens": _integer,
    "max_completion_tokens": _integer,
    "min_tokens": _integer,
    "stop": _stop_strings,
    "stop_token_ids": _token_ids,
    "ignore_eos": _boolean,
    "top_logprobs": _integer,
    "n": _count_of_samples,
}

SAMPLING_FIELDS = frozenset(_READERS) | {"logprobs"}
