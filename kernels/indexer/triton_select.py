"""Exact top-k in Triton by a hierarchy of maxima.

The top k entries lie in the top k segments of adjacent entries, if a segment's score is that of its
best entry and the lower one wins a tie: for any other segment, k segments are better, and each of
them has an entry better than all of its own.  So scores are read once, by a kernel that only
computes maxima, and the searches that follow read little.  ``triton_few`` is faster for long rows
of bf16.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.errors import TensorError
from deepinfer.kernels.launch import check_tensor, describe, next_power_of_2
from deepinfer.kernels.relaunch import launch

from .triton_few import has_few, select_few
from .triton_maxima import segment_best

_SEGMENT = 16
_TILE = 8192
_MAX_K = 2048
_RUN = 8  # adjacent entries per thread
_LEAST = 1024


def select_topk_triton(scores: Tensor, num_visible: Tensor, k: int) -> Tensor:
    """``select_topk_reference`` for bf16 or fp32 scores.

    The row stride may exceed the row length; it is fastest if it is a multiple of 16.
    Raises: TensorError if k is above 2,048 or a tensor has the wrong dtype, shape or device.
    """
    if not 0 < k <= _MAX_K:
        raise TensorError(f"k={k}: expected 1 to {_MAX_K}")
    lead = scores.shape[:-1]
    check_tensor("num_visible", num_visible, torch.int64, tuple(lead), scores)
    if not scores.numel():
        return torch.full((*lead, k), -1, dtype=torch.int64, device=scores.device)
    levels = [_score_rows(scores)]
    visible = num_visible.reshape(-1)
    if has_few(levels[0], k):
        return select_few(levels[0], visible, k).view(*lead, k)
    segment = _segment(k)
    while levels[-1].shape[1] > _TILE:
        seen = visible if len(levels) == 1 else None
        levels.append(segment_best(levels[-1], seen, segment)[0])
    chosen: Tensor | None = None
    while levels:
        upper = levels.pop() if len(levels) > 1 else None
        level = levels.pop()
        chosen = _select(upper, level, None if levels else visible, chosen, k, segment)
    assert chosen is not None
    return chosen.view(*lead, k)


def candidate_blocks_triton(
    scores: Tensor, num_visible: Tensor, block_size: int, num_blocks: int
) -> Tensor:
    """``candidate_blocks_reference`` for bf16 or fp32 scores; ``block_size`` is a power of two."""
    if block_size & (block_size - 1):
        raise TensorError(f"block_size={block_size}: expected a power of two")
    lead = scores.shape[:-1]
    check_tensor("num_visible", num_visible, torch.int64, tuple(lead), scores)
    rows = _score_rows(scores)
    best, _ = segment_best(rows, num_visible.reshape(-1), block_size, keep_newest=True)
    width = best.shape[1]
    every = torch.full((len(rows),), width, dtype=torch.int64, device=scores.device)
    return select_topk_triton(best.view(scores.dtype), every, num_blocks).view(*lead, num_blocks)


def _segment(k: int) -> int:
    """Entries per segment, such that k segments fit into a tile: the registers of a thread block,
    or the vector memory of an NPU core."""
    return min(_SEGMENT, _TILE // next_power_of_2(k))


def _score_rows(scores: Tensor) -> Tensor:
    """The bits of the scores as integers, [rows, N], with contiguous rows."""
    kinds = {torch.bfloat16: torch.int16, torch.float32: torch.int32}
    if scores.dtype not in kinds:
        raise TensorError(f"scores: expected bf16 or fp32, found {describe(scores)}")
    rows = scores
    # Reshaping would change the stride of a single row, from which launchers infer alignment.
    if scores.ndim != 2:
        rows = scores.reshape(scores[..., 0].numel(), scores.shape[-1])
    if rows.stride(-1) != 1:
        rows = rows.contiguous()
    return rows.view(kinds[scores.dtype])


def _select(
    upper: Tensor | None,
    bits: Tensor,
    visible: Tensor | None,
    parents: Tensor | None,
    k: int,
    segment: int,
) -> Tensor:
    """Top k entries of every row of ``bits``, in ascending order, [rows, k] i64.

    With ``upper``, the maxima of segments of ``bits``, its top k are found first, and only the
    entries of these segments are searched.  With ``parents`` [rows, k] i64 the (first) search is
    restricted to their children, ``segment`` each.
    """
    rows, size = bits.shape
    chosen = torch.empty(rows, k, dtype=torch.int64, device=bits.device)
    has_upper = upper is not None
    upper = bits if upper is None else upper
    some = next_power_of_2(max(_LEAST, segment * k))
    every = next_power_of_2(max(_LEAST, upper.shape[1]))
    upper_tile = some if parents is not None else every
    tile = some if has_upper or parents is not None else every
    launch(select_kernel, (rows,))(
        upper, bits, chosen if parents is None else parents, visible,
        torch.empty_like(chosen) if has_upper else chosen, chosen,
        upper.shape[1], size, upper.stride(0), bits.stride(0), k,
        BITS=8 * bits.element_size(), UPPER_TILE=upper_tile, TILE=tile, SEGMENT=segment,
        HAS_UPPER=has_upper, HAS_PARENTS=parents is not None, HAS_VISIBLE=visible is not None,
        RUN=min(_RUN, segment), UPPER_IS_WHOLE=_is_whole(upper), IS_WHOLE=_is_whole(bits),
        num_warps=max(4, max(upper_tile, tile) // 512), enable_fp_fusion=True,
    )  # fmt: skip
    return chosen


def _is_whole(bits: Tensor) -> bool:
    """Whether all runs of a row, including the last, can be read whole with wide loads."""
    return bits.stride(0) % _SEGMENT == 0 and -(-bits.shape[1] // _RUN) * _RUN <= bits.stride(0)


@triton.jit
def select_kernel(
    upper_ptr, bits_ptr, parents_ptr, visible_ptr, between_ptr, chosen_ptr,
    upper_size, size, upper_stride, stride, k,
    BITS: tl.constexpr, UPPER_TILE: tl.constexpr, TILE: tl.constexpr, SEGMENT: tl.constexpr,
    HAS_UPPER: tl.constexpr, HAS_PARENTS: tl.constexpr, HAS_VISIBLE: tl.constexpr,
    RUN: tl.constexpr, UPPER_IS_WHOLE: tl.constexpr, IS_WHOLE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    end = size
    if HAS_VISIBLE:
        end = tl.minimum(tl.load(visible_ptr + row), size).to(tl.int32)
    upper_row, bits_row = upper_ptr + row * upper_stride, bits_ptr + row * stride
    if HAS_UPPER:
        first = _runs(parents_ptr + row * k, k, UPPER_TILE, SEGMENT, RUN, HAS_PARENTS)
        bound, count = _take_best(
            upper_row, first, upper_size, between_ptr + row * k, k, 0, False, BITS, RUN,
            UPPER_IS_WHOLE,
        )  # fmt: skip
        # Other threads wrote the entries that are read next.
        tl.debug_barrier()
        first = _runs(between_ptr + row * k, k, TILE, SEGMENT, RUN, True)
        # Each of k segments has an entry that reaches the least of their maxima.
        _take_best(
            bits_row, first, end, chosen_ptr + row * k, k, bound, count == k, BITS, RUN, IS_WHOLE
        )
    else:
        first = _runs(parents_ptr + row * k, k, TILE, SEGMENT, RUN, HAS_PARENTS)
        _take_best(bits_row, first, end, chosen_ptr + row * k, k, 0, False, BITS, RUN, IS_WHOLE)


@triton.jit
def _runs(
    parents_ptr, k, TILE: tl.constexpr, SEGMENT: tl.constexpr, RUN: tl.constexpr,
    HAS_PARENTS: tl.constexpr,
):  # fmt: skip
    """First entry of each run of RUN, [TILE / RUN], -1 for none: runs of k parents, or all runs."""
    run = tl.arange(0, TILE // RUN)
    if HAS_PARENTS:
        PER: tl.constexpr = SEGMENT // RUN
        parent = tl.load(parents_ptr + run // PER, mask=run < PER * k, other=-1).to(tl.int32)
        return tl.where(parent >= 0, parent * SEGMENT + run % PER * RUN, -1)
    return run * RUN


@triton.jit
def _take_best(
    bits_ptr, first, end, chosen_ptr, k, bound, has_bound, BITS: tl.constexpr,
    RUN: tl.constexpr, IS_WHOLE: tl.constexpr,
):  # fmt: skip
    """Store the top k entries of a row; returns (threshold, number of entries).

    ``first`` [R] are the first entries of runs, ascending; a thread holds whole runs.
    ``bound`` is a key that k entries reach, if ``has_bound``.
    """
    # Integers in the order of the scores; hidden entries are below all of them.
    LOWEST: tl.constexpr = -2147483648
    HIGHEST: tl.constexpr = 2147483647
    # Ascend pads the last axis to eight.
    AXIS: tl.constexpr = 1 if RUN % 8 == 0 else 0
    member = tl.expand_dims(tl.arange(0, RUN), 1 - AXIS)
    entry = tl.expand_dims(first, AXIS) + member
    is_there = tl.expand_dims(first >= 0, AXIS) & (entry < end)
    if IS_WHOLE:
        # One mask per run, so that loads stay wide.
        is_run = (first >= 0) & (first < end)
        first = tl.multiple_of(tl.where(is_run, first, 0), RUN)
        place = bits_ptr + tl.expand_dims(first, AXIS) + member
        bits = tl.load(place, mask=tl.expand_dims(is_run, AXIS), other=0)
    else:
        bits = tl.load(bits_ptr + entry, mask=is_there, other=0)
    key = tl.where(is_there, _ordered(bits.to(tl.int32), BITS), LOWEST)
    # Binary search for the largest threshold that k keys reach, or else the lowest key.
    least = tl.min(tl.min(tl.where(key == LOWEST, HIGHEST, key), AXIS), 0)
    low = tl.where(has_bound, bound, least)
    high = tl.maximum(tl.max(tl.max(key, AXIS), 0), low)
    while low < high:
        # Midpoint, computed without overflow.
        middle = low + ((high.to(tl.uint32) - low.to(tl.uint32) + 1) >> 1).to(tl.int32)
        reached = tl.sum(tl.sum((key >= middle).to(tl.int32), AXIS), 0)
        low = tl.where(reached >= k, middle, low)
        high = tl.where(reached >= k, high, middle - 1)
    # Two counts in one integer, each up to 2**15: above the threshold, and tied with it.
    is_tied = (key == low) & (key != LOWEST)
    flags = (key > low).to(tl.int32) + (is_tied.to(tl.int32) << 16)
    own = tl.sum(flags, AXIS)
    total = tl.sum(own, 0)
    before = tl.expand_dims(tl.cumsum(own, 0) - own, AXIS) + tl.cumsum(flags, AXIS) - flags
    above, tied = before & 0xFFFF, (before >> 16) & 0xFFFF
    num_above = total & 0xFFFF
    num_tied = tl.minimum(k - num_above, (total >> 16) & 0xFFFF)
    is_taken = (key > low) | (is_tied & (tied < num_tied))
    rank = above + tl.minimum(tied, num_tied)
    tl.store(chosen_ptr + rank, entry.to(tl.int64), mask=is_taken)
    count = num_above + num_tied
    for start in range(0, k, first.shape[0]):
        rest = start + tl.arange(0, first.shape[0])
        nothing = tl.full([first.shape[0]], -1, tl.int64)
        tl.store(chosen_ptr + rest, nothing, mask=(rest >= count) & (rest < k))
    return low, count


@triton.jit
def _ordered(bits, BITS: tl.constexpr):
    """Map the bits of floats to i32 with the same order; -0 and +0 are equal, and NaN and -inf,
    which are never selected, become the lowest."""
    INFINITY: tl.constexpr = 0x7F80 if BITS == 16 else 0x7F800000
    magnitude = bits & (0x7FFF if BITS == 16 else 0x7FFFFFFF)
    key = tl.where(bits < 0, -magnitude, magnitude)
    return tl.where((magnitude > INFINITY) | (key == -INFINITY), -2147483648, key)
