"""Pairs of token and expert in the order of experts, and the tiles of an expert GEMM over them.

Nothing here waits for the GPU or depends on the routing in size, so it can be part of a graph.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.kernels.gemm.matrix_path import Tile
from deepinfer.kernels.gemm.triton_kernel import ExpertTiles

_BLOCK = 1024
_TILES = 32


def order_pairs(ids: Tensor, num_experts: int, tile: Tile) -> ExpertTiles:
    """Sort pairs by expert, stably; pairs whose expert is not in [0, num_experts) take no part.

    Shapes: ids [T, K] i64, pair p is token p // K and its choice p % K.  Batch-invariant: yes.
    """
    pairs, device = ids.numel(), ids.device
    order = torch.empty(pairs, dtype=torch.int32, device=device)
    offsets = torch.empty(num_experts + 1, dtype=torch.int32, device=device)
    _order_kernel[(num_experts,)](ids, order, offsets, pairs, _BLOCK)
    most = pairs // tile.tokens + min(num_experts, pairs)
    # Both begin at 16 bytes whatever ``most`` is: one variant of the kernels that read them.
    expert, row = torch.empty(2, triton.cdiv(most, 4) * 4, dtype=torch.int32, device=device)
    expert, row = expert[:most], row[:most]
    if most:
        _tiles_kernel[(triton.cdiv(most, _TILES),)](
            offsets, expert, row, num_experts, most,
            tile.tokens, triton.next_power_of_2(num_experts), _TILES,
        )  # fmt: skip
    return ExpertTiles(order, offsets, expert, row, tile)


@triton.jit(do_not_specialize=["num_pairs"])
def _order_kernel(ids, order, offsets, num_pairs, BLOCK: tl.constexpr):
    """One program for an expert: how many pairs come before its own, then where each of them is."""
    expert = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    before = tl.zeros([BLOCK], tl.int32)
    for start in range(0, num_pairs, BLOCK):
        pair = start + lane
        chosen = tl.load(ids + pair, mask=pair < num_pairs, other=-1)
        before += ((chosen >= 0) & (chosen < expert)).to(tl.int32)
    place = tl.sum(before, axis=0)
    tl.store(offsets + expert, place)
    for start in range(0, num_pairs, BLOCK):
        pair = start + lane
        own = tl.load(ids + pair, mask=pair < num_pairs, other=-1) == expert
        count = own.to(tl.int32)
        tl.store(order + place + tl.cumsum(count, axis=0) - count, pair, mask=own)
        place += tl.sum(count, axis=0)
    if expert == tl.num_programs(0) - 1:
        tl.store(offsets + expert + 1, place)


@triton.jit(do_not_specialize=["num_tiles"])
def _tiles_kernel(
    offsets,
    tile_expert,
    tile_row,
    num_experts,
    num_tiles,
    TOKENS: tl.constexpr,
    EXPERTS: tl.constexpr,
    TILES: tl.constexpr,
):
    """Tile t belongs to the first expert whose tiles, with those before it, are more than t."""
    expert = tl.arange(0, EXPERTS)
    real = expert < num_experts
    begin = tl.load(offsets + expert, mask=real, other=0)
    end = tl.load(offsets + expert + 1, mask=real, other=0)
    count = (end - begin + TOKENS - 1) // TOKENS
    total = tl.cumsum(count, axis=0)
    tile = tl.program_id(0) * TILES + tl.arange(0, TILES)
    passed = (total[None, :] <= tile[:, None]) & real[None, :]
    owner = tl.sum(passed.to(tl.int32), axis=1)
    first = tl.sum(tl.where(passed, count[None, :], 0), axis=1)
    used = owner < num_experts
    row = tl.load(offsets + owner, mask=used, other=0) + (tile - first) * TOKENS
    inside = tile < num_tiles
    tl.store(tile_expert + tile, tl.where(used, owner, -1), mask=inside)
    tl.store(tile_row + tile, row, mask=inside)
