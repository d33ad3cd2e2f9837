"""Index scores from packed rows in paged memory: the specification in plain torch.

Processes as many requests and queries at a time as fit into the cache of a CPU core.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from deepinfer.kernels.numeric import CACHE_ELEMENTS
from deepinfer.kernels.quant import unpack_index_rows

from .reference import index_scores_reference

_SHORT_QUERY = 8


def paged_index_scores_reference(
    query_rows: Tensor,
    head_weights: Tensor,
    pool: Tensor,
    block_table: Tensor,
    request_rows: Tensor,
    num_visible: Tensor,
    num_entries: int,
) -> Tensor:
    """``index_scores_reference`` of T queries, each with the index keys of its own request.

    Shapes: query_rows [T, H, B] u8 and pool [P, E, B] u8 (packed index rows, E entries per block),
    head_weights [T, H] bf16, block_table [R, C] i64, request_rows and num_visible [T] i64; returns
    [T, num_entries] bf16.  Scores of hidden entries are unspecified.
    Batch-invariant: yes.
    """
    heads, num_queries = query_rows.shape[1], len(query_rows)
    # Padding in ``rows`` is -1: it reads the last query and writes the spare row.
    scores = head_weights.new_full((num_queries + 1, num_entries), -torch.inf)
    most_scores = max(1, heads * _SHORT_QUERY * num_entries)
    for requests, rows in _groups(request_rows, max(1, CACHE_ELEMENTS // most_scores)):
        longest = min(num_entries, max(1, int(num_visible[rows].max())))
        blocks = block_table[requests, : -(-longest // pool.shape[1])]
        keys = unpack_index_rows(pool[blocks].flatten(1, 2))
        tile = max(1, CACHE_ELEMENTS // (len(requests) * heads * longest))
        for part in torch.split(rows, tile, dim=1):
            visible = num_visible[part]
            seen = min(num_entries, max(1, int(visible.max())))
            queries = unpack_index_rows(query_rows[part])
            found = index_scores_reference(queries, head_weights[part], keys[:, :seen])
            hidden = torch.arange(seen, device=found.device) >= visible[..., None]
            scores[part, :seen] = found.masked_fill_(hidden, -torch.inf)
    return scores[:num_queries]


def _groups(request_rows: Tensor, most_together: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Requests [R] i64 and the indices of their queries [R, Q] i64, padded with -1.

    Requests with few queries (decode, verification) are batched, prompts go one by one.
    """
    counts = torch.bincount(request_rows)
    order = torch.argsort(request_rows, stable=True)
    if len(counts) and int(counts.max()) <= _SHORT_QUERY:
        by_request = request_rows[order]
        place = (
            torch.arange(len(order), device=order.device) - (counts.cumsum(0) - counts)[by_request]
        )
        rows = torch.full((len(counts), int(counts.max())), -1, device=order.device)
        rows[by_request, place] = order
        requests = counts.nonzero()[:, 0]
        for together in torch.split(requests, most_together):
            yield together, rows[together]
        return
    for request, rows in enumerate(torch.split(order, counts.tolist())):
        if len(rows):
            yield torch.tensor([request], device=order.device), rows[None]
