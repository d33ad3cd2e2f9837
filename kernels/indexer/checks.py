"""Checks of the operands of both GPU implementations of index scores."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.errors import TensorError
from deepinfer.kernels.launch import check_tensor, describe, sizes


def check_operands(
    query_rows: Tensor,
    head_weights: Tensor,
    pool: Tensor,
    block_table: Tensor,
    request_rows: Tensor,
    num_visible: Tensor,
    num_entries: int,
) -> None:
    """Raises: TensorError that names the tensor, what was expected and what was found."""
    num_queries, heads, row_bytes = sizes("query_rows", query_rows, 3)
    half = row_bytes * 16 // 17
    if heads & (heads - 1) or not half or half + half // 16 != row_bytes or half % 16:
        raise TensorError(
            "query_rows: expected a power of two of heads, rows of a multiple of 17 bytes, found "
            + describe(query_rows)
        )
    check_tensor("query_rows", query_rows, torch.uint8, (None, None, None), pool)
    check_tensor("head_weights", head_weights, torch.bfloat16, (num_queries, heads), pool)
    check_tensor("pool", pool, torch.uint8, (None, None, row_bytes), pool)
    check_tensor("block_table", block_table, torch.int64, (None, None), pool)
    check_tensor("request_rows", request_rows, torch.int64, (num_queries,), pool)
    check_tensor("num_visible", num_visible, torch.int64, (num_queries,), pool)
    if block_table.shape[1] * pool.shape[1] < num_entries:
        raise TensorError(
            f"block_table: {num_entries} entries need {-(-num_entries // pool.shape[1])} blocks "
            f"per request, found {describe(block_table)}"
        )


def check_lists(blocks: Tensor, num_places: Tensor, query_rows: Tensor) -> None:
    """Raises: TensorError as ``check_operands``."""
    check_tensor("blocks", blocks, torch.int64, (len(query_rows), None), query_rows)
    check_tensor("num_places", num_places, torch.int64, (len(query_rows),), query_rows)
