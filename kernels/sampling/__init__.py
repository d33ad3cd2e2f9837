"""Sampling of the next token: deterministic noise, filters, penalties, log-probabilities."""

from __future__ import annotations

from .dispatch import exponential_noise as exponential_noise
from .dispatch import mask_logits as mask_logits
from .dispatch import penalize_logits as penalize_logits
from .dispatch import sample as sample
from .logits import apply_penalties as apply_penalties
from .logits import token_logprobs as token_logprobs
