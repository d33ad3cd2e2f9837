"""Kernels of ``pair_order.py`` that sort pairs by expert (a counting sort).

The first kernel counts the pairs of each expert before every block of pairs within a chunk of
blocks, and in the whole chunk.  Rows follow from these counts and the pairs of the block itself.
"""

from __future__ import annotations

import triton
import triton.language as tl


# Sizes that depend on the batch must not cause recompilation.
@triton.jit(do_not_specialize=["num_pairs", "num_blocks"])
def count_kernel(
    ids, counts, num_pairs, num_experts, num_blocks, EXPERTS: tl.constexpr, PAIRS: tl.constexpr,
    CHUNKS: tl.constexpr,
):  # fmt: skip
    """For a group of EXPERTS: pairs before every block of a chunk, and in the whole chunk."""
    program = tl.program_id(0)
    expert = program // CHUNKS * EXPERTS + tl.arange(0, EXPERTS)
    chunk = program % CHUNKS
    in_chunk = tl.cdiv(num_blocks, CHUNKS)
    end = tl.minimum((chunk + 1) * in_chunk, num_blocks)
    lane = tl.arange(0, PAIRS)
    before = tl.zeros([EXPERTS], tl.int32)
    # Software prefetch: two blocks are in flight while one is counted.
    pair = chunk * in_chunk * PAIRS + lane
    chosen = tl.load(ids + pair, mask=pair < num_pairs, other=-1)
    pair += PAIRS
    following = tl.load(ids + pair, mask=pair < num_pairs, other=-1)
    for block in range(chunk * in_chunk, end):
        tl.store(counts + block * num_experts + expert, before, mask=expert < num_experts)
        pair = (block + 2) * PAIRS + lane
        last = tl.load(ids + pair, mask=pair < num_pairs, other=-1)
        before += tl.sum((of_experts(chosen)[:, None] == expert[None, :]).to(tl.int32), axis=0)
        chosen, following = following, last
    place = counts + (num_blocks + chunk) * num_experts + expert
    tl.store(place, before, mask=expert < num_experts)


@triton.jit(do_not_specialize=["num_pairs", "num_blocks", "num_tiles"])
def place_pairs_kernel(
    ids, counts, row_pair, pair_row, tile_expert, used,
    num_pairs, num_experts, num_blocks, num_tiles,
    PLACED_EXPERTS: tl.constexpr, TILE_ROWS: tl.constexpr, EXPERTS: tl.constexpr,
    CHUNKS: tl.constexpr, BLOCK_PAIRS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """One program per block and PLACED_EXPERTS experts, one for the tiles of each expert, one for
    unused tiles."""
    placing = num_blocks * tl.cdiv(num_experts, PLACED_EXPERTS)
    program = tl.program_id(0)
    if program < placing:
        _place_pairs(
            program, ids, counts, row_pair, pair_row, num_pairs, num_experts, num_blocks,
            PLACED_EXPERTS, TILE_ROWS, EXPERTS, CHUNKS, BLOCK_PAIRS,
        )  # fmt: skip
    else:
        place_tiles(
            program - placing, counts, row_pair, tile_expert, used, num_experts, num_blocks,
            num_tiles, TILE_ROWS, EXPERTS, CHUNKS, PAIRS,
        )  # fmt: skip


@triton.jit
def _place_pairs(
    program, ids, counts, row_pair, pair_row, num_pairs, num_experts, num_blocks,
    PLACED_EXPERTS: tl.constexpr, TILE_ROWS: tl.constexpr,
    EXPERTS: tl.constexpr, CHUNKS: tl.constexpr, BLOCK_PAIRS: tl.constexpr,
):  # fmt: skip
    """Rows of the pairs of a block that belong to a group of experts; group 0 also writes -1 for
    pairs without a local expert."""
    groups = tl.cdiv(num_experts, PLACED_EXPERTS)
    block = program // groups
    group = program % groups
    own = group * PLACED_EXPERTS + tl.arange(0, PLACED_EXPERTS)
    pair = block * BLOCK_PAIRS + tl.arange(0, BLOCK_PAIRS)
    chosen = of_experts(tl.load(ids + pair, mask=pair < num_pairs, other=-1))
    expert, _, size = whole_tiles(counts, num_experts, num_blocks, TILE_ROWS, EXPERTS, CHUNKS)
    begin = tl.sum(tl.where(expert[None, :] < own[:, None], size[None, :], 0), axis=1)
    inside = own < num_experts
    begin += tl.load(counts + block * num_experts + own, mask=inside, other=0)
    chunk = tl.arange(0, CHUNKS)[:, None]
    is_before = (chunk < block // tl.cdiv(num_blocks, CHUNKS)) & inside[None, :]
    place = counts + (num_blocks + chunk) * num_experts + own[None, :]
    begin += tl.sum(tl.load(place, mask=is_before, other=0), axis=0)
    is_own = (chosen[:, None] == own[None, :]) & inside[None, :]
    rows = begin[None, :] + tl.cumsum(is_own.to(tl.int32), axis=0)
    row = tl.sum(tl.where(is_own, rows, 0), axis=1) - 1
    owner = tl.where((chosen < 0) | (chosen >= num_experts), 0, chosen // PLACED_EXPERTS)
    tl.store(pair_row + pair, row, mask=(owner == group) & (pair < num_pairs))
    tl.store(row_pair + row, pair, mask=row >= 0)


@triton.jit
def of_experts(ids):
    """i64 ids as i32; -1 for ids that are negative or too large."""
    return tl.where((ids >> 32) == 0, ids.to(tl.int32), -1)


@triton.jit
def whole_tiles(
    counts, num_experts, num_blocks, TILE_ROWS: tl.constexpr, EXPERTS: tl.constexpr,
    CHUNKS: tl.constexpr,
):  # fmt: skip
    """Expert ids, pairs per expert, and rows per expert padded to whole tiles: [EXPERTS] i32
    each."""
    expert = tl.arange(0, EXPERTS)
    row = num_blocks + tl.arange(0, CHUNKS)
    place = counts + row[:, None] * num_experts + expert[None, :]
    total = tl.sum(tl.load(place, mask=(expert < num_experts)[None, :], other=0), axis=0)
    return expert, total, (total + TILE_ROWS - 1) // TILE_ROWS * TILE_ROWS


@triton.jit
def place_tiles(
    own, counts, row_pair, tile_expert, used, num_experts, num_blocks, num_tiles,
    TILE_ROWS: tl.constexpr, EXPERTS: tl.constexpr, CHUNKS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """Write the expert of the tiles of expert ``own``, and -1 for their padding rows; for ``own`` =
    num_experts the unused tiles and ``used``."""
    expert, total, size = whole_tiles(counts, num_experts, num_blocks, TILE_ROWS, EXPERTS, CHUNKS)
    first_row = tl.sum(tl.where(expert < own, size, 0), axis=0)
    next_row = first_row + tl.sum(tl.where(expert == own, total, 0), axis=0)
    last_row = first_row + tl.sum(tl.where(expert == own, size, 0), axis=0)
    owner = own
    if own == num_experts:
        next_row, last_row, owner = first_row, num_tiles * TILE_ROWS, -1
        tl.store(used, first_row)
    lane = tl.arange(0, PAIRS)
    for start in range(next_row, last_row, PAIRS):
        row = start + lane
        tl.store(row_pair + row, -1, mask=row < last_row)
    for start in range(first_row // TILE_ROWS, last_row // TILE_ROWS, PAIRS):
        tile = start + lane
        tl.store(tile_expert + tile, owner, mask=tile < last_row // TILE_ROWS)
