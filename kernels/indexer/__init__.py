"""Index scores, candidate blocks and top-k selection of compressed entries."""

from __future__ import annotations

from .dispatch import candidate_blocks as candidate_blocks
from .dispatch import paged_index_scores as paged_index_scores
from .dispatch import select_topk as select_topk

__all__ = ["candidate_blocks", "paged_index_scores", "select_topk"]
