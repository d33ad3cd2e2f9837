"""Heads of the draft stages: Markov correction and confidence.

Verification needs no kernel here: drafts and target draw with the same noise, in one launch of
``kernels/sampling`` each, and the host, which reads both, compares them.  Rejection, off by
default, is plain torch in ``engine/speculation/rejection.py``.
"""

from __future__ import annotations

from .dispatch import draft_confidence as draft_confidence
from .dispatch import markov_logits as markov_logits
