"""Index scores, candidate blocks and top-k selection of compressed entries."""

from __future__ import annotations

from .dispatch import candidate_blocks as candidate_blocks
from .dispatch import listed_index_scores as listed_index_scores
from .dispatch import paged_index_scores as paged_index_scores
from .dispatch import pool_rows as pool_rows
from .dispatch import select_topk as select_topk
from .listed import num_listed_places as num_listed_places

__all__ = [
    "candidate_blocks",
    "listed_index_scores",
    "num_listed_places",
    "paged_index_scores",
    "pool_rows",
    "select_topk",
]
