"""Draft stages: Markov correction, confidence, and verification by rejection.

Where drafts and target draw with the same noise, verification needs none of this: the host, which
reads both, compares them.
"""

from __future__ import annotations

from .dispatch import draft_confidence as draft_confidence
from .dispatch import markov_logits as markov_logits
from .dispatch import verify_drafts as verify_drafts
