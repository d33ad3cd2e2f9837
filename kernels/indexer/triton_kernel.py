"""Index scores in Triton: tiles of keys by the heads of a few queries.

Products of FP4 values have few bits, so their fp32 sums are exact and no tiling changes the result.
Block-scaled MMAs (SM100, SM103) take FP4 with its scales; for other devices it is decoded.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.kernels.gemm.matrix_path import MatrixPath
from deepinfer.kernels.launch import cdiv, matrix_dtype, next_power_of_2
from deepinfer.kernels.quant.triton_bits import bf16_bits, bf16_value, round_bf16
from deepinfer.kernels.quant.triton_rows import index_codes, index_keys
from deepinfer.kernels.relaunch import launch

from .checks import check_operands

_TILE_QUERIES = 4
_TILE_ENTRIES = 128
# Packed bytes: Triton 3.6 compiles block-scaled MMAs for a K of at least 64.
_LEAST_SCALED = 32


def paged_index_scores_triton(
    query_rows: Tensor,
    head_weights: Tensor,
    pool: Tensor,
    block_table: Tensor,
    request_rows: Tensor,
    num_visible: Tensor,
    num_entries: int,
    *,
    path: MatrixPath | None = None,
) -> Tensor:
    """``paged_index_scores_reference``; tiles that no query sees are skipped.

    Fastest if the queries of a request are adjacent.  Scores of hidden entries are undefined.
    ``path`` is the fastest of the device unless given.
    Raises: TensorError for a wrong dtype, shape, device or layout.
    """
    check_operands(
        query_rows, head_weights, pool, block_table, request_rows, num_visible, num_entries
    )
    num_queries, heads, row_bytes = query_rows.shape
    half = row_bytes * 16 // 17
    scores = head_weights.new_empty(num_queries, num_entries)
    if not scores.numel():
        return scores
    path = path or MatrixPath.of(query_rows.device)
    grid = (cdiv(num_entries, _TILE_ENTRIES), cdiv(num_queries, _TILE_QUERIES))
    launch(score_kernel, grid)(
        query_rows, head_weights.view(torch.int16), pool, block_table, request_rows, num_visible,
        scores.view(torch.int16), num_queries, num_entries, pool.shape[1], block_table.shape[1],
        H=heads, HALF=half, TILE_PAIRS=next_power_of_2(half),
        TILE_Q=_TILE_QUERIES, TILE_E=_TILE_ENTRIES, DOT=matrix_dtype(),
        SCALED=path is MatrixPath.SCALED and half >= _LEAST_SCALED,
        num_warps=4, enable_fp_fusion=True,
    )  # fmt: skip
    return scores


# If specialized on block_entries % 16 == 0, Triton 3.6 wrongly infers that pool rows are aligned to
# 16 bytes.
@triton.jit(do_not_specialize=["num_queries", "table_width", "block_entries"])
def score_kernel(
    query_rows_ptr, weights_ptr, pool_ptr, table_ptr, requests_ptr, visible_ptr,
    scores_ptr, num_queries, num_entries, block_entries, table_width,
    H: tl.constexpr, HALF: tl.constexpr, TILE_PAIRS: tl.constexpr, TILE_Q: tl.constexpr,
    TILE_E: tl.constexpr, DOT: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(1).to(tl.int64) * TILE_Q
    query = first + tl.arange(0, TILE_Q)
    is_query = query < num_queries
    entry = tl.program_id(0) * TILE_E + tl.arange(0, TILE_E)
    is_entry = entry < num_entries
    request = tl.load(requests_ptr + query, mask=is_query, other=-1)
    visible = tl.load(visible_ptr + query, mask=is_query, other=0)
    is_wanted = (entry[:, None] < visible[None, :]) & is_entry[:, None]
    # The heads of all queries of the tile are the columns of one GEMM.
    column = first * H + tl.arange(0, TILE_Q * H)
    is_column = column < num_queries * H
    if SCALED:
        q_codes, q_scales = index_codes(query_rows_ptr, column, is_column, HALF, TILE_PAIRS)
        q_codes = tl.trans(q_codes)
    else:
        q_even, q_odd = index_keys(query_rows_ptr, column, is_column, HALF, TILE_PAIRS, TILE_Q * H)
        q_even, q_odd = tl.trans(q_even.to(DOT)), tl.trans(q_odd.to(DOT))
    weight = bf16_value(tl.load(weights_ptr + column, mask=is_column, other=0))

    for number in range(TILE_Q):
        is_number = tl.arange(0, TILE_Q) == number
        own = tl.max(tl.where(is_number, request, -1), 0)
        is_first = tl.min(tl.where(request == own, tl.arange(0, TILE_Q), TILE_Q), 0) == number
        is_here = is_wanted & (request == own)[None, :]
        if (own >= 0) & is_first & (tl.max(is_here.to(tl.int32)) > 0):
            table = table_ptr + own * table_width + entry // block_entries
            block = tl.load(table, mask=is_entry, other=0)
            row = block * block_entries + entry % block_entries
            if SCALED:
                codes, scales = index_codes(pool_ptr, row, is_entry, HALF, TILE_PAIRS)
                dots = tl.dot_scaled(codes, scales, "e2m1", q_codes, q_scales, "e2m1")
            else:
                k_even, k_odd = index_keys(pool_ptr, row, is_entry, HALF, TILE_PAIRS, TILE_E)
                dots = tl.dot(k_even.to(DOT), q_even)
                dots = tl.dot(k_odd.to(DOT), q_odd, dots)
            scores = _weighted(dots, weight, TILE_E, TILE_Q, H, DOT)
            place = scores_ptr + query[None, :] * num_entries + entry[:, None]
            tl.store(place, bf16_bits(scores).to(tl.int16), mask=is_here)


@triton.jit
def _weighted(
    dots, weight, TILE_E: tl.constexpr, TILE_Q: tl.constexpr, H: tl.constexpr, DOT: tl.constexpr
):
    """Sum over heads of w * relu(dot), each step rounded to bf16: [E, Q * H] -> [E, Q] fp32."""
    if DOT == tl.float32:  # noqa: SIM300
        products = round_bf16(tl.maximum(round_bf16(dots), 0.0) * weight[None, :])
    else:
        positive = tl.maximum(dots, 0.0).to(DOT).to(tl.float32)
        products = (positive * weight[None, :]).to(DOT).to(tl.float32)
    return tl.sum(tl.reshape(products, (TILE_E, TILE_Q, H)), 2)
