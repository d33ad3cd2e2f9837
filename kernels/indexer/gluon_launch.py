"""Index scores on Hopper: launchers of the Gluon kernels, and the grouping of queries."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.kernels.launch import cdiv, multiprocessors
from deepinfer.kernels.relaunch import launch

from .checks import check_lists, check_operands
from .gluon_kernel import score_gluon_kernel
from .gluon_listed import MOST_TILES, SIZE, score_listed_kernel

_TILE_ENTRIES = 64
# By pairs of queries that share the keys of a request (a token with five drafts, or with up to
# three): resident thread blocks per SM, and registers per thread.
_BLOCKS = {3: (3, 168), 2: (4, 128)}
_LISTED_BLOCKS = 8
_PIECE_TILES: tuple[int, int] = (4, MOST_TILES.value)
_LITTLE = 48


def paged_index_scores_gluon(
    query_rows: Tensor,
    head_weights: Tensor,
    pool: Tensor,
    block_table: Tensor,
    request_rows: Tensor,
    num_visible: Tensor,
    num_entries: int,
) -> Tensor:
    """``paged_index_scores_triton`` for 32 heads of 128 on SM90 (H100, H200).

    Numerics: FP8 MMAs with the accumulation of the tensor cores, then rounded like the reference;
    sometimes the last bit of a score differs.  The bits of a score do not depend on other queries.
    Raises: TensorError for a wrong dtype, shape, device or layout.
    """
    check_operands(
        query_rows, head_weights, pool, block_table, request_rows, num_visible, num_entries
    )
    num_queries = len(query_rows)
    scores = _rows_of_scores(head_weights, num_entries)
    if not num_queries * num_entries:
        return scores
    requests = len(block_table)
    pairs = 3 if num_queries > 4 * requests else 2
    groups = request_rows.new_empty(num_queries + 1, dtype=torch.int32)
    launch(group_kernel, (1,))(
        request_rows, groups, num_queries, SIZE=2 * pairs, TILE=1024,
        num_warps=8, enable_fp_fusion=True,
    )  # fmt: skip
    blocks, registers = _BLOCKS[pairs]
    # Adjacent queries of one request form groups, at least one per request.
    num_groups = max(requests, cdiv(num_queries, 2 * pairs))
    piece = _piece_entries(num_groups, num_entries, blocks * multiprocessors(pool.device))
    pieces = cdiv(num_entries, piece)
    most_groups = min(num_queries, requests + num_queries // (2 * pairs))
    launch(score_gluon_kernel, (most_groups * pieces,))(
        query_rows.view(torch.int32), head_weights, pool.view(torch.int32), block_table,
        request_rows, num_visible, groups, scores,
        num_queries, num_entries, scores.stride(0), block_table.shape[1], pieces, piece,
        BLOCK_ENTRIES=pool.shape[1], PAIRS=pairs,
        num_warps=4, maxnreg=registers, enable_fp_fusion=True,
    )  # fmt: skip
    return scores


def fits_listed(pool: Tensor, block_size: int) -> bool:
    """Whether ``listed_index_scores_gluon`` supports these: listed blocks of 8 that do not straddle
    blocks of the pool."""
    return block_size == SIZE.value and pool.shape[1] % block_size == 0


def listed_index_scores_gluon(
    query_rows: Tensor,
    head_weights: Tensor,
    pool: Tensor,
    block_table: Tensor,
    request_rows: Tensor,
    blocks: Tensor,
    num_places: Tensor,
    *,
    block_size: int,
) -> Tensor:
    """``listed_index_scores_reference`` for 32 heads of 128 on SM90, with the bits of
    ``paged_index_scores_gluon``.  Raises: TensorError like that.
    """
    check_operands(query_rows, head_weights, pool, block_table, request_rows, num_places, 0)
    check_lists(blocks, num_places, query_rows)
    assert fits_listed(pool, block_size)
    num_queries, width = blocks.shape
    scores = _rows_of_scores(head_weights, width * block_size)
    if not scores.numel():
        return scores
    blocks_at_once = _LISTED_BLOCKS * multiprocessors(pool.device)
    piece = _piece_entries(num_queries, width * block_size, blocks_at_once)
    pieces = cdiv(width * block_size, piece)
    launch(score_listed_kernel, (num_queries * pieces,))(
        query_rows.view(torch.int32), head_weights, pool.view(torch.int32), block_table,
        request_rows, blocks, num_places, scores,
        num_queries, scores.stride(0), block_table.shape[1], width, piece,
        BLOCK_ENTRIES=pool.shape[1],
        num_warps=4, enable_fp_fusion=True,
    )  # fmt: skip
    return scores


def _piece_entries(rows: int, entries: int, blocks: int) -> int:
    """Entries per work unit of a thread block, of which ``blocks`` are resident.

    If there is little work, each block gets at most one unit.  Otherwise each gets a few, for load
    balance: SMs are not all equally fast.
    """
    row_tiles = cdiv(entries, _TILE_ENTRIES)
    tiles = cdiv(row_tiles, max(1, blocks // rows))
    if tiles > _LITTLE:
        tiles = rows * row_tiles // (2 * blocks)
    return _TILE_ENTRIES * max(_PIECE_TILES[0], min(_PIECE_TILES[1], tiles))


def _rows_of_scores(head_weights: Tensor, width: int) -> Tensor:
    """Uninitialized bf16 scores [T, width] with rows aligned to 32 bytes, for wide loads in
    top-k."""
    return head_weights.new_empty(len(head_weights), 16 * cdiv(width, 16))[:, :width]


@triton.jit(do_not_specialize=["num_queries"])
def group_kernel(requests_ptr, groups_ptr, num_queries, SIZE: tl.constexpr, TILE: tl.constexpr):
    """Number of groups, followed by the first query of each: groups are up to SIZE adjacent queries
    of one request."""
    begin = tl.full([], 0, tl.int32)
    count = tl.full([], 0, tl.int32)
    for first in range(0, num_queries, TILE):
        query = first + tl.arange(0, TILE)
        is_query = query < num_queries
        request = tl.load(requests_ptr + query, mask=is_query, other=-1)
        before = tl.load(requests_ptr + query - 1, mask=is_query & (query > 0), other=-2)
        start = tl.where(request != before, query, 0)
        start = tl.maximum(tl.associative_scan(start, 0, _larger), begin)
        is_start = is_query & ((query - start) % SIZE == 0)
        place = count + tl.cumsum(is_start.to(tl.int32), 0)
        tl.store(groups_ptr + place, query, mask=is_start)
        begin = tl.max(start, 0)
        count += tl.sum(is_start.to(tl.int32), 0)
    tl.store(groups_ptr, count)


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b)
