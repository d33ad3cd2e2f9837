"""Pairs of token and choice in the order of experts, each expert in tiles of its own.

Nothing here waits for the GPU or depends on the routing in size, so it can be part of a graph.
The first kernel counts, for each expert, the pairs before every block of pairs.  In the second a
program for each token finds its rows from these counts and by looking at its own block, and puts
the token there, quantised.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.kernels.gemm.activations import Activations
from deepinfer.kernels.gemm.expert_rows import ExpertRows
from deepinfer.kernels.gemm.k_order import KOrder
from deepinfer.kernels.gemm.matrix_path import MatrixPath
from deepinfer.kernels.gemm.triton_blocks import kept_pairs, quantized, store_codes
from deepinfer.kernels.launch import bf16_pairs, cdiv, next_power_of_2
from deepinfer.kernels.quant.triton_bits import even_bf16, odd_bf16

_BLOCK = 1024  # pairs that are counted together
_COMPARED = 256  # pairs that a token's are compared with at a time
_COUNTED_EXPERTS = 16  # of a program
_NO_MOVE = {"NUM_BLOCKS": 1, "BLOCK": 128, "PATH": -1, "ORDER": 0, "NATIVE": False, "WIDTH": 1}


def order_pairs(ids: Tensor, num_experts: int, tile_rows: int) -> ExpertRows:
    """Sort pairs by expert, stably; pairs whose expert is not in [0, num_experts) get no row.

    Shapes: ids [T, K] i64, pair p is token p // K and its choice p % K.  Batch-invariant: yes.
    """
    rows = _empty_rows(ids, num_experts, tile_rows)
    nothing = ids
    _arrange(ids, num_experts, rows, (nothing, nothing, nothing, 0, 0, 0), _NO_MOVE)
    return rows


def order_tokens(
    x: Tensor, ids: Tensor, num_experts: int, tile_rows: int, path: MatrixPath, order: KOrder
) -> tuple[ExpertRows, Activations]:
    """``order_pairs``, and x [T, d] bf16 in the order of its rows, quantised."""
    rows = _empty_rows(ids, num_experts, tile_rows)
    acts = Activations.empty(len(rows.pair), x.shape[1], path, order, x.device)
    pairs, layout = bf16_pairs("x", x), acts.layout
    moved = (pairs, *acts.writer, acts.scale_stride, pairs.shape[1], pairs.stride(0))
    layout |= {"WIDTH": next_power_of_2(layout["NUM_BLOCKS"])}
    _arrange(ids, num_experts, rows, moved, layout)
    return rows, acts


def _empty_rows(ids: Tensor, num_experts: int, tile_rows: int) -> ExpertRows:
    pairs, device = ids.numel(), ids.device
    most = pairs // tile_rows + min(num_experts, pairs)
    pair = torch.empty(most * tile_rows, dtype=torch.int32, device=device)
    row = torch.empty(pairs, dtype=torch.int32, device=device)
    expert = torch.empty(most, dtype=torch.int32, device=device)
    used = torch.empty(1, dtype=torch.int32, device=device)
    return ExpertRows(pair, row, expert, used, ids.shape[1], tile_rows)


def _arrange(
    ids: Tensor,
    num_experts: int,
    rows: ExpertRows,
    moved: tuple[Tensor, Tensor, Tensor, int, int, int],
    layout: dict[str, int],
) -> None:
    tokens, per_token = ids.shape
    if not ids.numel():
        return
    blocks = cdiv(ids.numel(), _BLOCK)
    counts = torch.empty(blocks + 1, num_experts, dtype=torch.int32, device=ids.device)
    _count_kernel[(cdiv(num_experts, _COUNTED_EXPERTS),)](
        ids, counts, ids.numel(), num_experts, blocks, EXPERTS=_COUNTED_EXPERTS, PAIRS=_BLOCK,
        num_warps=8, enable_fp_fusion=True,
    )  # fmt: skip
    _place_kernel[(tokens + num_experts + 1,)](
        ids, counts, rows.pair, rows.row, rows.expert, rows.used, *moved,
        tokens, num_experts, blocks, len(rows.expert),
        PER_TOKEN=per_token, CHOICES=next_power_of_2(per_token), TILE_ROWS=rows.tile_rows,
        EXPERTS=next_power_of_2(num_experts), BLOCK_PAIRS=_BLOCK, PAIRS=_COMPARED,
        **layout, num_warps=8, enable_fp_fusion=True,
    )  # fmt: skip


@triton.jit(do_not_specialize=["num_pairs", "num_blocks"])
def _count_kernel(
    ids, counts, num_pairs, num_experts, num_blocks, EXPERTS: tl.constexpr, PAIRS: tl.constexpr
):
    """Pairs of each expert before every block, and in all."""
    expert = tl.program_id(0) * EXPERTS + tl.arange(0, EXPERTS)
    lane = tl.arange(0, PAIRS)
    before = tl.zeros([EXPERTS], tl.int32)
    # Two blocks are on their way while one is counted.
    chosen = tl.load(ids + lane, mask=lane < num_pairs, other=-1).to(tl.int32)
    following = tl.load(ids + PAIRS + lane, mask=PAIRS + lane < num_pairs, other=-1).to(tl.int32)
    for block in range(num_blocks):
        tl.store(counts + block * num_experts + expert, before, mask=expert < num_experts)
        pair = (block + 2) * PAIRS + lane
        last = tl.load(ids + pair, mask=pair < num_pairs, other=-1).to(tl.int32)
        before += tl.sum((chosen[:, None] == expert[None, :]).to(tl.int32), axis=0)
        chosen, following = following, last
    tl.store(counts + num_blocks * num_experts + expert, before, mask=expert < num_experts)


@triton.jit(do_not_specialize=["num_tokens", "num_blocks", "num_tiles"])
def _place_kernel(
    ids, counts, row_pair, pair_row, tile_expert, used,
    x, values, scales, scale_stride, num_words, row_stride,
    num_tokens, num_experts, num_blocks, num_tiles,
    PER_TOKEN: tl.constexpr, CHOICES: tl.constexpr, TILE_ROWS: tl.constexpr,
    EXPERTS: tl.constexpr, BLOCK_PAIRS: tl.constexpr, PAIRS: tl.constexpr,
    WIDTH: tl.constexpr, NUM_BLOCKS: tl.constexpr, BLOCK: tl.constexpr, PATH: tl.constexpr,
    ORDER: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """A program for each token, one for the tiles of each expert, one for the tiles of none.
    PATH -1: only the order."""
    program = tl.program_id(0)
    expert = tl.arange(0, EXPERTS)
    inside = expert < num_experts
    total = tl.load(counts + num_blocks * num_experts + expert, mask=inside, other=0)
    size = (total + TILE_ROWS - 1) // TILE_ROWS * TILE_ROWS
    first = tl.cumsum(size, axis=0) - size
    if program < num_tokens:
        block = tl.arange(0, WIDTH)
        if PATH >= 0:
            word = kept_pairs(block, BLOCK, ORDER)
            source = x + program.to(tl.int64) * row_stride + word
            both = tl.load(source, mask=word < num_words, other=0)
        row = _place_token(
            program, ids, counts, row_pair, pair_row, expert, first, num_experts,
            PER_TOKEN, CHOICES, BLOCK_PAIRS, PAIRS,
        )  # fmt: skip
        if PATH >= 0:
            codes, odd_codes, exponent = quantized(
                even_bf16(both), odd_bf16(both), PATH, ORDER, NATIVE
            )
            for choice in tl.static_range(PER_TOKEN):
                is_choice = tl.arange(0, CHOICES) == choice
                target = tl.max(tl.where(is_choice, row, -1), axis=0)
                if target >= 0:
                    store_codes(
                        codes, odd_codes, exponent, target + tl.zeros_like(block), block,
                        block < NUM_BLOCKS, values, scales, scale_stride,
                        NUM_BLOCKS, BLOCK, PATH, ORDER,
                    )  # fmt: skip
    else:
        own = program - num_tokens
        first_row = tl.sum(tl.where(expert == own, first, 0), axis=0)
        next_row = first_row + tl.sum(tl.where(expert == own, total, 0), axis=0)
        last_row = first_row + tl.sum(tl.where(expert == own, size, 0), axis=0)
        owner = own
        if own == num_experts:
            first_row = tl.sum(size, axis=0)
            next_row, last_row, owner = first_row, num_tiles * TILE_ROWS, -1
            tl.store(used, first_row)
        lane = tl.arange(0, PAIRS)
        for start in range(next_row, last_row, PAIRS):
            row = start + lane
            tl.store(row_pair + row, -1, mask=row < last_row)
        for start in range(first_row // TILE_ROWS, last_row // TILE_ROWS, PAIRS):
            tile = start + lane
            tl.store(tile_expert + tile, owner, mask=tile < last_row // TILE_ROWS)


@triton.jit
def _place_token(
    token, ids, counts, row_pair, pair_row, expert, first, num_experts,
    PER_TOKEN: tl.constexpr, CHOICES: tl.constexpr, BLOCK_PAIRS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """Rows of a token's pairs, -1 for those whose expert is not here: [CHOICES] i32.

    ``first`` row of each ``expert``.
    """
    choice = tl.arange(0, CHOICES)
    pair = token * PER_TOKEN + choice
    last = token * PER_TOKEN + PER_TOKEN
    chosen = tl.load(ids + pair, mask=choice < PER_TOKEN, other=-1).to(tl.int32)
    is_here = (chosen >= 0) & (chosen < num_experts)
    block = pair // BLOCK_PAIRS
    row = tl.load(counts + block * num_experts + chosen, mask=is_here, other=0)
    for start in range(token * PER_TOKEN // BLOCK_PAIRS * BLOCK_PAIRS, last, PAIRS):
        other = start + tl.arange(0, PAIRS)
        others = tl.load(ids + other, mask=other < last, other=-1).to(tl.int32)
        is_before = (other[None, :] < pair[:, None]) & (
            other[None, :] >= (block * BLOCK_PAIRS)[:, None]
        )
        row += tl.sum(((others[None, :] == chosen[:, None]) & is_before).to(tl.int32), axis=1)
    is_chosen = chosen[:, None] == expert[None, :]
    row += tl.sum(tl.where(is_chosen, first[None, :], 0), axis=1)
    row = tl.where(is_here, row, -1)
    tl.store(pair_row + pair, row, mask=choice < PER_TOKEN)
    tl.store(row_pair + row, pair, mask=is_here)
    return row
