"""Choosing the next token: deterministic noise, filters, penalties, log-probabilities."""

from __future__ import annotations

from .logits import apply_penalties as apply_penalties
from .logits import token_logprobs as token_logprobs
from .reference import exponential_noise as exponential_noise
from .reference import sample as sample
