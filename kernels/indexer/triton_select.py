"""Exact top-k in Triton: the best of each chunk, then the best of those, until one chunk is left.

The answer is unique (the lower entry wins a tie), so how the work is cut cannot change it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.errors import TensorError
from deepinfer.kernels.launch import check_tensor, describe
from deepinfer.kernels.quant.triton_bits import bf16_bits, bf16_value

_CHUNK = 8192
_MAX_K = _CHUNK // 4
_TILE_BLOCKS = 256


def select_topk_triton(scores: Tensor, num_visible: Tensor, k: int) -> Tensor:
    """``select_topk_reference`` of bf16 or fp32 scores.

    Raises: TensorError if k is above 2,048 or a tensor has the wrong dtype, shape or device.
    """
    if not 0 < k <= _MAX_K:
        raise TensorError(f"k={k}: expected 1 to {_MAX_K}")
    lead = scores.shape[:-1]
    check_tensor("num_visible", num_visible, torch.int64, tuple(lead), scores)
    if not scores.numel():
        return torch.full((*lead, k), -1, dtype=torch.int64, device=scores.device)
    level = _score_bits(_matrix(scores).contiguous())
    rows = len(level)
    entries: Tensor | None = None
    visible: Tensor | None = num_visible.reshape(-1)
    while True:
        size = level.shape[1]
        tile = max(16, min(_CHUNK, triton.next_power_of_2(size)))
        chunks = triton.cdiv(size, tile)
        chosen = torch.empty(rows, chunks * k, dtype=torch.int64, device=scores.device)
        best = torch.empty_like(chosen, dtype=level.dtype)
        select_kernel[(rows, chunks)](
            level, entries, visible, chosen, best, size, k,
            BITS=8 * level.element_size(), TILE=tile,
            HAS_ENTRIES=entries is not None, HAS_VISIBLE=visible is not None, num_warps=8,
        )  # fmt: skip
        if chunks == 1:
            return chosen.view(*lead, k)
        level, entries, visible = best, chosen, None


def candidate_blocks_triton(
    scores: Tensor, num_visible: Tensor, block_size: int, num_blocks: int
) -> Tensor:
    """``candidate_blocks_reference`` of bf16 or fp32 scores, ``block_size`` a power of two."""
    if block_size & (block_size - 1):
        raise TensorError(f"block_size={block_size}: expected a power of two")
    lead = scores.shape[:-1]
    check_tensor("num_visible", num_visible, torch.int64, tuple(lead), scores)
    bits = _score_bits(_matrix(scores).contiguous())
    rows, size = bits.shape
    width = triton.cdiv(size, block_size)
    best = torch.empty(rows, width, dtype=scores.dtype, device=scores.device)
    if best.numel():
        block_best_kernel[(rows, triton.cdiv(width, _TILE_BLOCKS))](
            bits, num_visible.reshape(-1), _score_bits(best), size, width,
            BITS=8 * bits.element_size(), SIZE=block_size, TILE=_TILE_BLOCKS, num_warps=4,
        )  # fmt: skip
    every = torch.full((rows,), width, dtype=torch.int64, device=scores.device)
    chosen = select_topk_triton(best, every, num_blocks)
    kept = torch.zeros(rows, width + 1, dtype=torch.bool, device=scores.device)
    kept.scatter_(1, torch.where(chosen < 0, width, chosen), True)
    return kept[:, :-1].reshape(*lead, width)


def _matrix(scores: Tensor) -> Tensor:
    return scores.reshape(scores[..., 0].numel(), scores.shape[-1])


def _score_bits(scores: Tensor) -> Tensor:
    kinds = {torch.bfloat16: torch.int16, torch.float32: torch.int32}
    if scores.dtype not in kinds:
        raise TensorError(f"scores: expected bf16 or fp32, found {describe(scores)}")
    return scores.view(kinds[scores.dtype])


@triton.jit
def select_kernel(
    scores_ptr, entries_ptr, visible_ptr, chosen_ptr, best_ptr, size, k,
    BITS: tl.constexpr, TILE: tl.constexpr, HAS_ENTRIES: tl.constexpr, HAS_VISIBLE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * TILE + tl.arange(0, TILE)
    visible = size
    if HAS_VISIBLE:
        visible = tl.minimum(tl.load(visible_ptr + row), size).to(tl.int32)
    bits = tl.load(scores_ptr + row * size + place, mask=place < visible, other=0).to(tl.int32)
    MINUS_INFINITY: tl.constexpr = -128 if BITS == 16 else -8388608
    is_seen = (place < visible) & (bits != MINUS_INFINITY)
    # Integers in the order of the scores; what is not seen comes below all of them.
    key = tl.where(is_seen, _ordered(bits, BITS), -2147483648)

    threshold = tl.full([], -(1 << (BITS - 1)), tl.int32)
    for step in range(BITS):
        higher = threshold + (tl.full([], 1, tl.int32) << (BITS - 1 - step))
        is_enough = tl.sum((key >= higher).to(tl.int32), 0) >= k
        threshold = tl.where(is_enough, higher, threshold)
    is_above = is_seen & (key > threshold)
    is_tied = is_seen & (key == threshold)
    num_tied = k - tl.sum(is_above.to(tl.int32), 0)
    is_taken = is_above | (is_tied & (tl.cumsum(is_tied.to(tl.int32), 0) <= num_tied))
    rank = tl.cumsum(is_taken.to(tl.int32), 0) - 1
    count = tl.sum(is_taken.to(tl.int32), 0)

    start = (row * tl.num_programs(1) + tl.program_id(1)) * k
    entry = place.to(tl.int64)
    if HAS_ENTRIES:
        entry = tl.load(entries_ptr + row * size + place, mask=is_taken, other=-1)
    kind = best_ptr.dtype.element_ty
    tl.store(chosen_ptr + start + rank, entry, mask=is_taken)
    tl.store(best_ptr + start + rank, bits.to(kind), mask=is_taken)
    for first in range(0, k, TILE):
        rest = first + tl.arange(0, TILE)
        is_rest = (rest >= count) & (rest < k)
        tl.store(chosen_ptr + start + rest, tl.full([TILE], -1, tl.int64), mask=is_rest)
        tl.store(best_ptr + start + rest, tl.full([TILE], MINUS_INFINITY, kind), mask=is_rest)


@triton.jit
def block_best_kernel(
    scores_ptr, visible_ptr, best_ptr, size, width,
    BITS: tl.constexpr, SIZE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1) * TILE + tl.arange(0, TILE)
    entry = block[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    visible = tl.load(visible_ptr + row)
    is_seen = entry < tl.minimum(visible, size)
    bits = tl.load(scores_ptr + row * size + entry, mask=is_seen, other=0).to(tl.int32)
    value = bf16_value(bits) if BITS == 16 else bits.to(tl.float32, bitcast=True)
    best = tl.max(tl.where(is_seen, value, float("-inf")), 1)
    is_newest = (visible > 0) & (block == (visible - 1) // SIZE)
    best = tl.where(is_newest, float("inf"), best)
    bits = bf16_bits(best) if BITS == 16 else best.to(tl.int32, bitcast=True)
    tl.store(best_ptr + row * width + block, bits.to(best_ptr.dtype.element_ty), mask=block < width)


@triton.jit
def _ordered(bits, BITS: tl.constexpr):
    """i32 whose order is that of the values behind the bits; -0 and +0 are equal."""
    if BITS == 16:
        key = tl.where(bits < 0, bits ^ 0x7FFF, bits)
        return tl.where(bits == -32768, 0, key)
    key = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return tl.where(bits == -2147483648, 0, key)
