"""Index scores, candidate blocks and top-k selection of compressed entries."""

from __future__ import annotations

from .reference import candidate_blocks_reference as candidate_blocks
from .reference import index_scores_reference as index_scores
from .reference import select_topk_reference as select_topk

__all__ = ["candidate_blocks", "index_scores", "select_topk"]
