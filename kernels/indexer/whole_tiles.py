"""Index scores on Ascend, where only whole tiles are safe.

Its compiler turns a masked store into a read-modify-write of the whole tile: what a tile has beyond
the end of a row would overwrite the next row.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import pad

from .triton_kernel import _TILE_ENTRIES, _TILE_QUERIES, paged_index_scores_triton


def paged_index_scores_whole_tiles(
    query_rows: Tensor,
    head_weights: Tensor,
    pool: Tensor,
    block_table: Tensor,
    request_rows: Tensor,
    num_visible: Tensor,
    num_entries: int,
) -> Tensor:
    """``paged_index_scores_triton``, padded with queries that see no entries and with hidden
    entries."""
    queries = -len(query_rows) % _TILE_QUERIES
    width = num_entries + -num_entries % _TILE_ENTRIES
    blocks = max(0, -(-width // pool.shape[1]) - block_table.shape[1])
    scores = paged_index_scores_triton(
        pad(query_rows, (0, 0, 0, 0, 0, queries)),
        pad(head_weights, (0, 0, 0, queries)),
        pool,
        pad(block_table, (0, blocks)),
        pad(request_rows, (0, queries)),
        pad(num_visible, (0, queries)),
        width,
    )
    return scores[: len(query_rows), :num_entries].contiguous()
