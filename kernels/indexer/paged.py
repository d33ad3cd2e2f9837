"""Index scores straight from packed rows in paged memory: the specification in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.kernels.quant import unpack_index_rows

from .reference import index_scores_reference


def paged_index_scores_reference(
    query_rows: Tensor,
    head_weights: Tensor,
    pool: Tensor,
    block_table: Tensor,
    request_rows: Tensor,
    num_visible: Tensor,
    num_entries: int,
    kept: Tensor | None = None,
    *,
    kept_size: int = 8,
) -> Tensor:
    """``index_scores`` of T queries, each with the index keys of its own request.

    Shapes: query_rows [T, H, B] u8 and pool [P, E, B] u8 (packed index rows, E entries per block),
    head_weights [T, H] bf16, block_table [R, C] i64, request_rows and num_visible [T] i64; kept
    [T, >= num_entries / kept_size] bool: blocks of entries to look at, or None for all; returns
    [T, num_entries] bf16.  Entries outside of kept blocks are -inf, entries that a query does not
    see are unspecified.
    """
    scores = head_weights.new_empty(len(query_rows), num_entries)
    queries = unpack_index_rows(query_rows)
    num_blocks = -(-num_entries // pool.shape[1])
    for request in sorted(set(request_rows.tolist())):
        tokens = (request_rows == request).nonzero()[:, 0]
        keys = unpack_index_rows(pool[block_table[request, :num_blocks]].flatten(0, 1))
        part = index_scores_reference(
            queries[tokens][None], head_weights[tokens][None], keys[None, :num_entries]
        )
        scores[tokens] = part[0]
    if kept is not None:
        is_kept = kept.bool().repeat_interleave(kept_size, dim=1)[:, :num_entries]
        scores.masked_fill_(~is_kept, -torch.inf)
    hidden = torch.arange(num_entries, device=scores.device) >= num_visible[:, None]
    return scores.masked_fill_(hidden, -torch.inf)
