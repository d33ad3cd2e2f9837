"""The indexer: the reference on a CPU, Triton or Gluon kernels on a GPU."""

from __future__ import annotations

from torch import Tensor

from deepinfer.kernels.placement import on_accelerator

from .listed import listed_index_scores_reference, pool_rows_reference
from .paged import paged_index_scores_reference
from .reference import candidate_blocks_reference, select_topk_reference


def paged_index_scores(
    query_rows: Tensor,
    head_weights: Tensor,
    pool: Tensor,
    block_table: Tensor,
    request_rows: Tensor,
    num_visible: Tensor,
    num_entries: int,
) -> Tensor:
    """See ``paged_index_scores_reference``."""
    arguments = (query_rows, head_weights, pool, block_table, request_rows, num_visible)
    if on_accelerator(query_rows):
        from deepinfer.kernels.launch import is_npu

        # Imported only there: Triton for other vendors' devices may lack Gluon.
        if _has_gluon_form(query_rows):
            from .gluon_launch import paged_index_scores_gluon

            return paged_index_scores_gluon(*arguments, num_entries)
        if is_npu(query_rows.device):
            from .whole_tiles import paged_index_scores_whole_tiles

            return paged_index_scores_whole_tiles(*arguments, num_entries)
        from .triton_kernel import paged_index_scores_triton

        return paged_index_scores_triton(*arguments, num_entries)
    return paged_index_scores_reference(*arguments, num_entries)


def listed_index_scores(
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
    """See ``listed_index_scores_reference``."""
    arguments = (query_rows, head_weights, pool, block_table, request_rows, blocks, num_places)
    if on_accelerator(query_rows) and _has_gluon_form(query_rows):
        from .gluon_launch import fits_listed, listed_index_scores_gluon

        if fits_listed(pool, block_size):
            return listed_index_scores_gluon(*arguments, block_size=block_size)
    return listed_index_scores_reference(
        *arguments, block_size=block_size, score_all=paged_index_scores
    )


def select_topk(scores: Tensor, num_visible: Tensor, k: int) -> Tensor:
    """See ``select_topk_reference``."""
    if on_accelerator(scores):
        from .triton_select import select_topk_triton

        return select_topk_triton(scores, num_visible, k)
    return select_topk_reference(scores, num_visible, k)


def candidate_blocks(
    scores: Tensor, num_visible: Tensor, block_size: int, num_blocks: int
) -> Tensor:
    """See ``candidate_blocks_reference``."""
    if on_accelerator(scores):
        from .triton_select import candidate_blocks_triton

        return candidate_blocks_triton(scores, num_visible, block_size, num_blocks)
    return candidate_blocks_reference(scores, num_visible, block_size, num_blocks)


def pool_rows(
    picks: Tensor,
    request_rows: Tensor,
    block_table: Tensor,
    per_block: int,
    blocks: Tensor | None = None,
    *,
    block_size: int = 8,
) -> Tensor:
    """See ``pool_rows_reference``."""
    arguments = (picks, request_rows, block_table, per_block, blocks)
    if picks.is_cuda:  # plain torch on Ascend, for which this kernel was never compiled
        from .triton_rows import pool_rows_triton

        return pool_rows_triton(*arguments, block_size=block_size)
    return pool_rows_reference(*arguments, block_size=block_size)


def _has_gluon_form(query_rows: Tensor) -> bool:
    from deepinfer.kernels.launch import is_hopper

    return is_hopper(query_rows.device) and query_rows.shape[1:] == (32, 68)
