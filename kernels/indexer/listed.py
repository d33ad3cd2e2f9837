"""Lists of blocks of entries: scores of the listed entries, and pool rows of selected ones.

T queries, L listed blocks each, ascending and padded with -1.  Position p of a list is entry
p % block_size of its block p // block_size; the positions that a query sees come first.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from .paged import paged_index_scores_reference


class _ScoreAll(Protocol):
    def __call__(
        self,
        query_rows: Tensor,
        head_weights: Tensor,
        pool: Tensor,
        block_table: Tensor,
        request_rows: Tensor,
        num_visible: Tensor,
        num_entries: int,
    ) -> Tensor: ...


def listed_index_scores_reference(
    query_rows: Tensor,
    head_weights: Tensor,
    pool: Tensor,
    block_table: Tensor,
    request_rows: Tensor,
    blocks: Tensor,
    num_places: Tensor,
    *,
    block_size: int,
    score_all: _ScoreAll = paged_index_scores_reference,
) -> Tensor:
    """``paged_index_scores`` of the entries in listed blocks: scores all entries and gathers.

    Shapes: blocks [T, L] i64, num_places [T] i64; returns [T, L * block_size] bf16.  Positions from
    num_places on are unspecified.  Batch-invariant: yes.
    """
    places = torch.arange(blocks.shape[1] * block_size, device=blocks.device)
    is_there = places < num_places[:, None]
    entries = torch.where(
        is_there, listed_entries(places.expand(len(blocks), -1), blocks, block_size), 0
    )
    num_visible = torch.where(is_there, entries + 1, 0).amax(1)
    num_entries = block_table.shape[1] * pool.shape[1]
    operands = (query_rows, head_weights, pool, block_table, request_rows)
    return score_all(*operands, num_visible, num_entries).gather(1, entries)


def num_listed_places(blocks: Tensor, num_visible: Tensor, block_size: int) -> Tensor:
    """[T] i64: how many positions of its list a query sees; the newest block, which may be partly
    hidden, is always the last of its list."""
    return (blocks >= 0).sum(1) * block_size - -num_visible % block_size


def listed_entries(places: Tensor, blocks: Tensor, block_size: int) -> Tensor:
    """The entries at positions [T, K] i64 of lists."""
    return blocks.gather(1, places // block_size) * block_size + places % block_size


def pool_rows_reference(
    picks: Tensor,
    request_rows: Tensor,
    block_table: Tensor,
    per_block: int,
    blocks: Tensor | None = None,
    *,
    block_size: int = 8,
) -> Tensor:
    """Rows of the flat pool, [T, K] i64, that hold the selected entries; -1 stays -1.

    Shapes: picks [T, K] i64, entries or, with ``blocks`` [T, L] i64, positions in lists;
    request_rows [T] i64, block_table [R, C] i64 of blocks of ``per_block`` entries in the pool.
    """
    entries = picks.clamp(min=0)
    if blocks is not None:
        entries = listed_entries(entries, blocks, block_size)
    found = block_table[request_rows[:, None], entries // per_block]
    return torch.where(picks < 0, -1, found * per_block + entries % per_block)
