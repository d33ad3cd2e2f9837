"""Pairs of token and choice in the order of experts, each expert in tiles of its own.

Nothing here waits for the GPU or depends on the routing in size, so it can be part of a graph.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.kernels.gemm.expert_rows import ExpertRows

# Pairs that a program looks at together: more where many belong to experts of other ranks.
_FEW, _MANY = 1024, 8192


def order_pairs(ids: Tensor, num_experts: int, tile_rows: int) -> ExpertRows:
    """Sort pairs by expert, stably; pairs whose expert is not in [0, num_experts) get no row.

    Shapes: ids [T, K] i64, pair p is token p // K and its choice p % K.  Batch-invariant: yes.
    """
    pairs, device = ids.numel(), ids.device
    counts = torch.empty(num_experts, dtype=torch.int32, device=device)
    most = pairs // tile_rows + min(num_experts, pairs)
    pair = torch.empty(most * tile_rows, dtype=torch.int32, device=device)
    row = torch.empty(pairs, dtype=torch.int32, device=device)
    expert = torch.empty(most, dtype=torch.int32, device=device)
    used = torch.empty(1, dtype=torch.int32, device=device)
    if pairs:
        block, num_warps = (_FEW, 4) if pairs <= 4 * _FEW else (_MANY, 16)
        _count_kernel[(num_experts,)](
            ids, counts, pairs, block, num_warps=num_warps, enable_fp_fusion=True
        )
        _place_kernel[(num_experts + 1,)](
            ids, counts, pair, row, expert, used, pairs, num_experts, most,
            tile_rows, triton.next_power_of_2(num_experts), block, num_warps=num_warps,
            enable_fp_fusion=True,
        )  # fmt: skip
    return ExpertRows(pair, row, expert, used, ids.shape[1], tile_rows)


@triton.jit(do_not_specialize=["num_pairs"])
def _count_kernel(ids, counts, num_pairs, BLOCK: tl.constexpr):
    """How many pairs chose an expert."""
    expert = tl.program_id(0)
    own = tl.zeros([BLOCK], tl.int32)
    for start in range(0, num_pairs, BLOCK):
        pair = start + tl.arange(0, BLOCK)
        own += (tl.load(ids + pair, mask=pair < num_pairs, other=-1) == expert).to(tl.int32)
    tl.store(counts + expert, tl.sum(own, axis=0))


@triton.jit(do_not_specialize=["num_pairs", "num_tiles"])
def _place_kernel(
    ids,
    counts,
    row_pair,
    pair_row,
    tile_expert,
    used,
    num_pairs,
    num_experts,
    num_tiles,
    TOKENS: tl.constexpr,
    EXPERTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program for an expert; the last one for the pairs and the tiles of none."""
    own = tl.program_id(0)
    expert = tl.arange(0, EXPERTS)
    count = tl.load(counts + expert, mask=expert < num_experts, other=0)
    tiles = (count + TOKENS - 1) // TOKENS
    first = tl.sum(tl.where(expert < own, tiles, 0), axis=0)
    lane = tl.arange(0, BLOCK)
    if own == num_experts:
        for start in range(0, num_pairs, BLOCK):
            pair = start + lane
            chosen = tl.load(ids + pair, mask=pair < num_pairs, other=0)
            tl.store(pair_row + pair, -1, mask=(chosen < 0) | (chosen >= num_experts))
        last = num_tiles
        next_row = first * TOKENS
        tl.store(used, next_row)
    else:
        last = first + tl.sum(tl.where(expert == own, tiles, 0), axis=0)
        next_row = first * TOKENS
        for start in range(0, num_pairs, BLOCK):
            pair = start + lane
            is_own = tl.load(ids + pair, mask=pair < num_pairs, other=-1) == own
            one = is_own.to(tl.int32)
            row = next_row + tl.cumsum(one, axis=0) - one
            tl.store(row_pair + row, pair, mask=is_own)
            tl.store(pair_row + pair, row, mask=is_own)
            next_row += tl.sum(one, axis=0)
    for start in range(next_row, last * TOKENS, BLOCK):
        row = start + lane
        tl.store(row_pair + row, -1, mask=row < last * TOKENS)
    for start in range(first, last, BLOCK):
        tile = start + lane
        tl.store(tile_expert + tile, tl.where(own < num_experts, own, -1), mask=tile < last)
