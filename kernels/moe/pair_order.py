"""Sort (token, expert) pairs by expert, each expert padded to whole tiles.

The host does not synchronize and no size depends on the routing, so CUDA graphs can capture this.
The first kernel counts, for each expert, the pairs before every block of pairs.  The second
computes rows from these counts and from the pairs of a block: one program per block and few
experts, or, if it also quantizes tokens and stores them in their rows, one per token.  If the
router has already assigned each pair a slot in its expert, only the second kernel is needed.
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
from deepinfer.kernels.launch import bf16_pairs, cdiv, check_tensor, next_power_of_2
from deepinfer.kernels.quant.triton_bits import even_bf16, odd_bf16
from deepinfer.kernels.relaunch import launch

from .slots import Slots
from .triton_pairs import count_kernel, of_experts, place_pairs_kernel, place_tiles, whole_tiles

_BLOCK = 1024  # pairs that are counted together
_COMPARED = 256  # pairs that a token's pairs are compared with at a time
_COUNTED_EXPERTS, _PLACED_EXPERTS = 16, 4  # per program
_MOST_TOTALS = 512  # counts that every program reads; with few experts there are several chunks


def order_pairs(ids: Tensor, num_experts: int, tile_rows: int) -> ExpertRows:
    """Stable sort of pairs by expert; pairs whose expert is not in [0, num_experts) get no row.

    Shapes: ids [T, K] i64; pair p belongs to token p // K, its expert is ids[p // K, p % K].
    Batch-invariant: yes.
    """
    rows = _empty_rows(ids, num_experts, tile_rows)
    if not ids.numel():
        return rows
    experts, blocks = next_power_of_2(num_experts), cdiv(ids.numel(), _BLOCK)
    chunks = max(1, min(32, _MOST_TOTALS // experts))
    counts = _counts(ids, num_experts, chunks)
    programs = blocks * cdiv(num_experts, _PLACED_EXPERTS) + num_experts + 1
    launch(place_pairs_kernel, (programs,))(
        ids, counts, rows.pair, rows.row, rows.expert, rows.used,
        ids.numel(), num_experts, blocks, len(rows.expert),
        PLACED_EXPERTS=_PLACED_EXPERTS, TILE_ROWS=tile_rows, EXPERTS=experts, CHUNKS=chunks,
        BLOCK_PAIRS=_BLOCK, PAIRS=_COMPARED, num_warps=8, enable_fp_fusion=True,
    )  # fmt: skip
    return rows


def order_tokens(
    x: Tensor,
    ids: Tensor,
    num_experts: int,
    tile_rows: int,
    path: MatrixPath,
    order: KOrder,
    slots: Slots | None = None,
) -> tuple[ExpertRows, Activations]:
    """``order_pairs``, and x [T, d] bf16 quantized and gathered in the order of its rows.

    ``slots`` of these ids, if given, determine the order within an expert; no counting is needed.
    """
    rows = _empty_rows(ids, num_experts, tile_rows)
    acts = Activations.empty(len(rows.pair), x.shape[1], path, order, x.device)
    tokens, per_token = ids.shape
    if not ids.numel():
        return rows, acts
    pairs, layout = bf16_pairs("x", x), acts.layout
    if slots is None:
        slot, counts, blocks = ids, _counts(ids, num_experts, 1), cdiv(ids.numel(), _BLOCK)
    else:
        check_tensor("slot", slots.slot, torch.int32, tuple(ids.shape), ids)
        check_tensor("total", slots.total, torch.int32, (num_experts,), ids)
        slot, counts, blocks = slots.slot, slots.total, 0
    launch(place_tokens_kernel, (tokens + num_experts + 1,))(
        ids, slot, counts, rows.pair, rows.row, rows.expert, rows.used,
        pairs, *acts.writer, acts.scale_stride, pairs.shape[1], pairs.stride(0),
        tokens, num_experts, blocks, len(rows.expert),
        TOP_K=per_token, TOP_K_PADDED=next_power_of_2(per_token), TILE_ROWS=tile_rows,
        EXPERTS=next_power_of_2(num_experts), BLOCK_PAIRS=_BLOCK, PAIRS=_COMPARED,
        SLOTS=slots is not None, WIDTH=next_power_of_2(layout["NUM_BLOCKS"]), **layout,
        num_warps=8, enable_fp_fusion=True,
    )  # fmt: skip
    return rows, acts


def _empty_rows(ids: Tensor, num_experts: int, tile_rows: int) -> ExpertRows:
    pairs, device = ids.numel(), ids.device
    most = ExpertRows.most_tiles(pairs, num_experts, tile_rows)
    pair = torch.empty(most * tile_rows, dtype=torch.int32, device=device)
    row = torch.empty(pairs, dtype=torch.int32, device=device)
    expert = torch.empty(most, dtype=torch.int32, device=device)
    used = torch.empty(1, dtype=torch.int32, device=device)
    return ExpertRows(pair, row, expert, used, ids.shape[1], tile_rows)


def _counts(ids: Tensor, num_experts: int, chunks: int) -> Tensor:
    """[blocks + chunks, num_experts] i32 of ``count_kernel``; at least one pair."""
    blocks = cdiv(ids.numel(), _BLOCK)
    counts = torch.empty(blocks + chunks, num_experts, dtype=torch.int32, device=ids.device)
    launch(count_kernel, (chunks * cdiv(num_experts, _COUNTED_EXPERTS),))(
        ids, counts, ids.numel(), num_experts, blocks,
        EXPERTS=_COUNTED_EXPERTS, PAIRS=_BLOCK, CHUNKS=chunks, num_warps=8, enable_fp_fusion=True,
    )  # fmt: skip
    return counts


# Sizes that depend on the batch must not cause recompilation.
@triton.jit(do_not_specialize=["num_tokens", "num_blocks", "num_tiles"])
def place_tokens_kernel(
    ids, slots, counts, row_pair, pair_row, tile_expert, used,
    x, values, scales, scale_stride, num_words, row_stride,
    num_tokens, num_experts, num_blocks, num_tiles,
    TOP_K: tl.constexpr, TOP_K_PADDED: tl.constexpr, TILE_ROWS: tl.constexpr,
    EXPERTS: tl.constexpr, BLOCK_PAIRS: tl.constexpr, PAIRS: tl.constexpr,
    SLOTS: tl.constexpr, WIDTH: tl.constexpr, NUM_BLOCKS: tl.constexpr, BLOCK: tl.constexpr,
    PATH: tl.constexpr, ORDER: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """One program per token, one for the tiles of each expert, one for unused tiles."""
    program = tl.program_id(0)
    if program < num_tokens:
        block = tl.arange(0, WIDTH)
        word = kept_pairs(block, BLOCK, ORDER)
        source = x + program.to(tl.int64) * row_stride + word
        both = tl.load(source, mask=word < num_words, other=0)
        row = _place_token(
            program, ids, slots, counts, row_pair, pair_row, num_experts, num_blocks,
            TOP_K, TOP_K_PADDED, TILE_ROWS, EXPERTS, BLOCK_PAIRS, PAIRS, SLOTS,
        )  # fmt: skip
        codes, odd_codes, exponent = quantized(even_bf16(both), odd_bf16(both), PATH, ORDER, NATIVE)
        for choice in tl.static_range(TOP_K):
            is_choice = tl.arange(0, TOP_K_PADDED) == choice
            target = tl.max(tl.where(is_choice, row, -1), axis=0)
            if target >= 0:
                store_codes(
                    codes, odd_codes, exponent, target + tl.zeros_like(block), block,
                    block < NUM_BLOCKS, values, scales, scale_stride,
                    NUM_BLOCKS, BLOCK, PATH, ORDER,
                )  # fmt: skip
    else:
        place_tiles(
            program - num_tokens, counts, row_pair, tile_expert, used, num_experts, num_blocks,
            num_tiles, TILE_ROWS, EXPERTS, 1, PAIRS,
        )  # fmt: skip


@triton.jit
def _place_token(
    token, ids, slots, counts, row_pair, pair_row, num_experts, num_blocks,
    TOP_K: tl.constexpr, TOP_K_PADDED: tl.constexpr, TILE_ROWS: tl.constexpr,
    EXPERTS: tl.constexpr, BLOCK_PAIRS: tl.constexpr, PAIRS: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """Rows of a token's pairs, -1 for those whose expert is not local: [TOP_K_PADDED] i32."""
    expert, _, size = whole_tiles(counts, num_experts, num_blocks, TILE_ROWS, EXPERTS, 1)
    choice = tl.arange(0, TOP_K_PADDED)
    pair = token * TOP_K + choice
    last = token * TOP_K + TOP_K
    chosen = of_experts(tl.load(ids + pair, mask=choice < TOP_K, other=-1))
    is_here = (chosen >= 0) & (chosen < num_experts)
    if SLOTS:
        row = tl.load(slots + pair, mask=is_here, other=0)
    else:
        block = pair // BLOCK_PAIRS
        row = tl.load(counts + block * num_experts + chosen, mask=is_here, other=0)
        for start in range(token * TOP_K // BLOCK_PAIRS * BLOCK_PAIRS, last, PAIRS):
            other = start + tl.arange(0, PAIRS)
            others = of_experts(tl.load(ids + other, mask=other < last, other=-1))
            is_before = (other[None, :] < pair[:, None]) & (
                other[None, :] >= (block * BLOCK_PAIRS)[:, None]
            )
            row += tl.sum(((others[None, :] == chosen[:, None]) & is_before).to(tl.int32), axis=1)
    is_below = expert[None, :] < chosen[:, None]
    row += tl.sum(tl.where(is_below, size[None, :], 0), axis=1)
    row = tl.where(is_here, row, -1)
    tl.store(pair_row + pair, row, mask=choice < TOP_K)
    tl.store(row_pair + row, pair, mask=is_here)
    return row
