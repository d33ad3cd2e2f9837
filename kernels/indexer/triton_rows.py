"""Pool rows of selected entries, in Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.errors import TensorError
from deepinfer.kernels.launch import check_tensor, describe, next_power_of_2, sizes
from deepinfer.kernels.relaunch import launch


def pool_rows_triton(
    picks: Tensor,
    request_rows: Tensor,
    block_table: Tensor,
    per_block: int,
    blocks: Tensor | None = None,
    *,
    block_size: int = 8,
) -> Tensor:
    """``pool_rows_reference`` in one launch.

    Raises: TensorError for a wrong dtype, shape, device or layout, and for empty block tables.
    """
    num_queries, k = sizes("picks", picks, 2)
    check_tensor("picks", picks, torch.int64, (None, None), picks)
    check_tensor("request_rows", request_rows, torch.int64, (num_queries,), picks)
    check_tensor("block_table", block_table, torch.int64, (None, None), picks)
    if blocks is not None:
        check_tensor("blocks", blocks, torch.int64, (num_queries, None), picks)
    rows = torch.empty_like(picks)
    if picks.numel():
        if per_block < 1 or not block_table.numel():
            raise TensorError(
                f"block_table: expected blocks of 1 entry or more, found {describe(block_table)} "
                f"of {per_block}"
            )
        if blocks is not None and (block_size < 1 or not blocks.shape[1]):
            raise TensorError(
                f"blocks: expected lists of blocks of 1 entry or more, found {describe(blocks)} "
                f"of {block_size}"
            )
        launch(pool_rows_kernel, (num_queries,))(
            picks, request_rows, block_table, blocks, rows,
            k, per_block, block_table.shape[1], 0 if blocks is None else blocks.shape[1],
            SIZE=0 if blocks is None else block_size, TILE=next_power_of_2(k),
            num_warps=4, enable_fp_fusion=True,
        )  # fmt: skip
    return rows


@triton.jit(do_not_specialize=["per_block", "table_width", "list_width"])
def pool_rows_kernel(
    picks_ptr, requests_ptr, table_ptr, blocks_ptr, rows_ptr,
    k, per_block, table_width, list_width,
    SIZE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    query = tl.program_id(0).to(tl.int64)
    number = tl.arange(0, TILE)
    entry = tl.load(picks_ptr + query * k + number, mask=number < k, other=-1).to(tl.int32)
    is_pick = entry >= 0
    if SIZE > 0:  # a position in the list
        block = tl.load(blocks_ptr + query * list_width + entry // SIZE, mask=is_pick, other=0)
        entry = block.to(tl.int32) * SIZE + entry % SIZE
    table = table_ptr + tl.load(requests_ptr + query) * table_width
    block = tl.load(table + entry // per_block, mask=is_pick, other=0)
    row = block * per_block + entry % per_block
    tl.store(rows_ptr + query * k + number, tl.where(is_pick, row, -1), mask=number < k)
