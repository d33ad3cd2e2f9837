"""Heads of the draft stages: Markov correction and confidence."""

from __future__ import annotations

from .reference import confidence_logits_reference as confidence_logits
from .reference import markov_logits_reference as markov_logits

__all__ = ["confidence_logits", "markov_logits"]
