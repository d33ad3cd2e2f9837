"""Checks a run's default sampling, so that it does not fail row by row."""

from __future__ import annotations

from deepinfer.engine.types import SamplingParams
from deepinfer.errors import ConfigError


def check_run_sampling(
    sampling: SamplingParams, *, vocab_size: int, max_model_len: int, is_constrained: bool
) -> None:
    """Raise the errors that every row without fields of its own would get.

    ``is_constrained``: whether the run has a constraint, which applies to those rows, too.
    Raises: ConfigError that names the parameter, its value and what was expected.
    """
    for name in ("logit_bias", "stop_token_ids"):
        for token_id in getattr(sampling, name):
            if token_id >= vocab_size:
                raise ConfigError(
                    f"{name}={token_id}: expected token ids of the model, 0 to {vocab_size - 1}"
                )
    shortest, longest = sampling.min_tokens, sampling.max_tokens
    if longest is not None and shortest > longest:
        raise ConfigError(f"min_tokens={shortest}: expected 0 to max_tokens={longest}")
    if shortest >= max_model_len:
        raise ConfigError(
            f"min_tokens={shortest}: expected 0 to {max_model_len - 1}, since prompt and answer "
            f"together may have max_model_len={max_model_len} tokens"
        )
    if shortest and is_constrained:
        raise ConfigError(
            f"min_tokens={shortest}: cannot be combined with a constraint, which determines where "
            "answers may end; remove one of the two"
        )
