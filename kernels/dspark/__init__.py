"""Draft stages: Markov correction, confidence, and verification by rejection sampling.

If drafts and target are drawn with the same noise, verification needs no kernel: the host reads and
compares both.
"""

from __future__ import annotations

from .dispatch import draft_confidence as draft_confidence
from .dispatch import markov_logits as markov_logits
from .dispatch import verify_drafts as verify_drafts
