"""Exact top-k of bf16 scores by thresholding: groups, then segments, then entries.

The k-th largest of a few thousand group maxima is reached by at least k entries, and by hardly more
if there are many more groups than k: of 131,072 normal scores 590 reach the 512th of 2,048 maxima.
So the groups, segments and entries that reach this threshold are compacted in turn, and only the
last list is searched.  If a list gets too long (ties, slowly varying scores), segments and entries
are searched in place.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.kernels.launch import cdiv, is_npu, next_power_of_2
from deepinfer.kernels.quant.triton_bits import bf16_value
from deepinfer.kernels.relaunch import launch

from .triton_maxima import segment_best

_SEGMENT = 16
_MOST_GROUPED = 32
_MAX_K = 512
_FEW_ROWS = 256  # up to so many, latency per row matters, and more warps reduce it
# The key of missing entries, and the least that may be selected: above that of -inf.
EMPTY = tl.constexpr(-32768)
LEAST = tl.constexpr(-0x7F7F)


def has_few(bits: Tensor, k: int) -> bool:
    """Whether ``select_few`` supports these rows: bf16, aligned, many more segments than k."""
    width = bits.shape[1] // _SEGMENT
    is_whole = bits.stride(0) % _SEGMENT == 0
    is_long = width >= max(2 * k, 512)
    return (
        bits.dtype == torch.int16
        and is_whole
        and is_long
        and k <= _MAX_K
        and not is_npu(bits.device)
    )


def select_few(bits: Tensor, visible: Tensor, k: int) -> Tensor:
    """As ``select_topk_reference``: [rows, k] i64.

    Shapes: bits [rows, N] i16 with a row stride that is a multiple of 32 bytes; visible [rows] i64.
    """
    rows, size = bits.shape
    width = cdiv(size, _SEGMENT)
    power = next_power_of_2(k)
    # About 4 k groups, or one per segment if there are fewer.
    group = min(_MOST_GROUPED, max(1, next_power_of_2(width // (4 * power) + 1) // 2))
    best, tops = segment_best(bits, visible, _SEGMENT, group=group)
    most = max(256, 2 * power)
    warps = 8 if rows <= _FEW_ROWS else (4 if group > 1 else 2)
    lists = torch.empty(rows, 2 * most, dtype=torch.int32, device=bits.device)
    chosen = torch.empty(rows, k, dtype=torch.int64, device=bits.device)
    launch(few_kernel, (rows,))(
        tops, best, bits, visible, lists, chosen,
        tops.shape[1], width, size, tops.stride(0), best.stride(0), bits.stride(0), k,
        TOPS=next_power_of_2(tops.shape[1]), GROUP=group, SEGMENT=_SEGMENT, MOST=most,
        PART={8: 1024, 4: 256, 2: 128}[warps], RUNS=64 * warps,
        num_warps=warps, enable_fp_fusion=True,
    )  # fmt: skip
    return chosen


@triton.jit
def few_kernel(
    tops_ptr, best_ptr, bits_ptr, visible_ptr, list_ptr, chosen_ptr,
    num_tops, width, size, tops_stride, best_stride, stride, k,
    TOPS: tl.constexpr, GROUP: tl.constexpr, SEGMENT: tl.constexpr, MOST: tl.constexpr,
    PART: tl.constexpr, RUNS: tl.constexpr,
):  # fmt: skip
    """Groups of GROUP segments of SEGMENT entries; ``list_ptr`` has two lists of MOST i32 per
    row."""
    row = tl.program_id(0).to(tl.int64)
    end = tl.minimum(tl.load(visible_ptr + row), size).to(tl.int32)
    best_row, bits_row = best_ptr + row * best_stride, bits_ptr + row * stride
    segments_ptr = list_ptr + row * (2 * MOST)
    found_ptr = segments_ptr + MOST
    chosen_ptr += row * k
    low, count = _reaching_groups(
        tops_ptr + row * tops_stride, found_ptr if GROUP > 1 else segments_ptr, num_tops, k, TOPS,
        MOST,
    )  # fmt: skip
    bound = bf16_value(tl.where(low < 0, 0x8000 - low, low))
    if GROUP > 1:  # noqa: SIM102 - decided while it is compiled
        if count <= MOST:
            tl.debug_barrier()
            count = _reaching_segments(
                best_row, found_ptr, segments_ptr, count, bound, GROUP, MOST, PART
            )
    total = count
    if count <= MOST:
        tl.debug_barrier()
        total = _reaching_entries(
            bits_row, segments_ptr, found_ptr, count, end, bound, SEGMENT, MOST, PART
        )
    tl.debug_barrier()
    if total <= MOST:
        _take_found(bits_row, found_ptr, total, low, chosen_ptr, k, MOST)
    else:
        runs = (width + 7) // 8
        low, count = _take_runs(
            best_row, best_row, runs, width, low, segments_ptr, k, 1, False, RUNS
        )
        tl.debug_barrier()
        PER: tl.constexpr = SEGMENT // 8
        # Each of k segments has an entry that reaches the least of their maxima.
        _, count = _take_runs(
            bits_row, segments_ptr, count * PER, end, low, chosen_ptr, k, PER, True, RUNS
        )
        _fill(chosen_ptr, count, k, MOST)


@triton.jit
def _reaching_groups(tops_row, list_ptr, num_tops, k, TOPS: tl.constexpr, MOST: tl.constexpr):
    """Find a threshold that at least k groups reach, at most k + k / 8 if possible, and list
    them."""
    run = tl.arange(0, TOPS // 8)
    group = run[:, None] * 8 + tl.arange(0, 8)[None, :]
    bits = tl.load(tops_row + group, mask=(run * 8 < num_tops)[:, None], other=0).to(tl.int32)
    key = tl.where(group < num_tops, _ordered(bits), EMPTY)
    low = tl.min(tl.min(key, 1), 0)
    high = tl.max(tl.max(key, 1), 0)
    enough = k + k // 8
    while low < high:
        middle = low + ((high - low + 1) >> 1)
        reached = tl.sum(tl.sum((key >= middle).to(tl.int32), 1), 0)
        low = tl.where(reached >= k, middle, low)
        high = tl.where(reached < k, middle - 1, tl.where(reached <= enough, middle, high))
    low = tl.maximum(low, LEAST)
    return low, _append((key >= low).to(tl.int32), group, list_ptr, 0, MOST)


@triton.jit
def _reaching_segments(
    best_row, groups_ptr, list_ptr, count, bound, GROUP: tl.constexpr, MOST: tl.constexpr,
    PART: tl.constexpr,
):  # fmt: skip
    TILE: tl.constexpr = PART if GROUP <= 4 else PART * 2 // GROUP
    total = tl.full([], 0, tl.int32)
    for start in range(0, count, TILE):
        slot = start + tl.arange(0, TILE)
        first = tl.load(groups_ptr + slot, mask=slot < count, other=0) * GROUP
        segment = tl.multiple_of(first, GROUP)[:, None] + tl.arange(0, GROUP)[None, :]
        best = tl.load(best_row + segment, mask=(slot < count)[:, None], other=0).to(tl.int32)
        reaches = (bf16_value(best) >= bound) & (slot < count)[:, None]
        total = _append(reaches.to(tl.int32), segment, list_ptr, total, MOST)
    return total


@triton.jit
def _reaching_entries(
    bits_row, segments_ptr, list_ptr, count, end, bound, SEGMENT: tl.constexpr, MOST: tl.constexpr,
    PART: tl.constexpr,
):  # fmt: skip
    total = tl.full([], 0, tl.int32)
    member = tl.arange(0, SEGMENT)[None, :]
    for start in range(0, count, PART):
        slot = start + tl.arange(0, PART)
        first = tl.load(segments_ptr + slot, mask=slot < count, other=0) * SEGMENT
        first = tl.multiple_of(first, SEGMENT)
        there = tl.where(slot < count, end - first, 0)
        bits = tl.load(bits_row + first[:, None] + member, mask=(there > 0)[:, None], other=0)
        reaches = (bf16_value(bits.to(tl.int32)) >= bound) & (member < there[:, None])
        # Count and bit mask of a segment's hits in one integer; few segments have more than one.
        packed = tl.sum(tl.where(reaches, (256 << member) + 1, 0), 1)
        hits, rest = packed & 255, packed >> 8
        rank = total + tl.cumsum(hits, 0) - hits
        total += tl.sum(hits, 0)
        for _ in tl.static_range(2):
            rest, rank = _append_lowest(rest, rank, first, list_ptr, MOST)
        while tl.max(rest, 0) > 0:
            rest, rank = _append_lowest(rest, rank, first, list_ptr, MOST)
    return total


@triton.jit
def _append(flags, number, list_ptr, start, MOST: tl.constexpr):
    """Append the numbers [R, C] with flag 1 to a list of length ``start``; returns its new
    length."""
    own = tl.sum(flags, 1)
    rank = (start + tl.cumsum(own, 0) - own)[:, None] + tl.cumsum(flags, 1) - flags
    tl.store(list_ptr + rank, number, mask=(flags != 0) & (rank < MOST))
    return start + tl.sum(own, 0)


@triton.jit
def _append_lowest(rest, rank, first, list_ptr, MOST: tl.constexpr):
    """Append the entry of each segment's lowest set bit, and clear the bit."""
    bit = rest & -rest
    place = (bit.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127
    tl.store(list_ptr + rank, first + place, mask=(rest != 0) & (rank < MOST))
    return rest ^ bit, rank + 1


@triton.jit
def _take_found(bits_row, found_ptr, total, low, chosen_ptr, k, MOST: tl.constexpr):
    """Store the top k of a list of entries, ascending, padded with -1."""
    slot = tl.arange(0, MOST)
    is_there = slot < total
    entry = tl.load(found_ptr + slot, mask=is_there, other=0)
    bits = tl.load(bits_row + entry, mask=is_there, other=0).to(tl.int32)
    key = tl.where(is_there, _ordered(bits), EMPTY)
    high = tl.maximum(tl.max(key, 0), low)
    while low < high:
        middle = low + ((high - low + 1) >> 1)
        reached = tl.sum((key >= middle).to(tl.int32), 0)
        low = tl.where(reached >= k, middle, low)
        high = tl.where(reached >= k, high, middle - 1)
    # Two counts in one integer: above the threshold, and tied with it.
    flags = (key > low).to(tl.int32) + ((key == low).to(tl.int32) << 16)
    before, every = tl.cumsum(flags, 0) - flags, tl.sum(flags, 0)
    room = k - (every & 0xFFFF)
    tied = before >> 16
    is_taken = (key > low) | ((key == low) & (tied < room))
    rank = (before & 0xFFFF) + tl.minimum(tied, room)
    tl.store(chosen_ptr + rank, entry.to(tl.int64), mask=is_taken)
    _fill(chosen_ptr, (every & 0xFFFF) + tl.minimum(every >> 16, room), k, MOST)


@triton.jit
def _fill(chosen_ptr, count, k, MOST: tl.constexpr):
    slot = tl.arange(0, MOST)
    nothing = tl.full([MOST], -1, tl.int64)
    tl.store(chosen_ptr + slot, nothing, mask=(slot >= count) & (slot < k))


@triton.jit
def _take_runs(
    bits_row, parents_ptr, num_runs, end, low, out_ptr, k, PER: tl.constexpr,
    HAS_PARENTS: tl.constexpr, RUNS: tl.constexpr,
):  # fmt: skip
    """Store the top k entries of runs of eight, ascending; returns (threshold, number of entries).

    Runs are all of a row, or PER for each parent; k of their entries reach the key ``low``, unless
    there are fewer.  They are reloaded for each step of the binary search.
    """
    high = low
    for start in range(0, num_runs, RUNS):
        _, key = _run_keys(bits_row, parents_ptr, num_runs, start, end, PER, HAS_PARENTS, RUNS)
        high = tl.maximum(high, tl.max(tl.max(key, 1), 0))
    while low < high:
        middle = low + ((high - low + 1) >> 1)
        reached = tl.full([], 0, tl.int32)
        for start in range(0, num_runs, RUNS):
            _, key = _run_keys(bits_row, parents_ptr, num_runs, start, end, PER, HAS_PARENTS, RUNS)
            reached += tl.sum(tl.sum((key >= middle).to(tl.int32), 1), 0)
        low = tl.where(reached >= k, middle, low)
        high = tl.where(reached >= k, high, middle - 1)
    room = tl.full([], 0, tl.int32) + k
    for start in range(0, num_runs, RUNS):
        _, key = _run_keys(bits_row, parents_ptr, num_runs, start, end, PER, HAS_PARENTS, RUNS)
        room -= tl.sum(tl.sum((key > low).to(tl.int32), 1), 0)
    num_above = tl.full([], 0, tl.int32)
    num_tied = tl.full([], 0, tl.int32)
    for start in range(0, num_runs, RUNS):
        entry, key = _run_keys(bits_row, parents_ptr, num_runs, start, end, PER, HAS_PARENTS, RUNS)
        flags = (key > low).to(tl.int32) + ((key == low).to(tl.int32) << 16)
        own = tl.sum(flags, 1)
        before = (tl.cumsum(own, 0) - own)[:, None] + tl.cumsum(flags, 1) - flags
        tied = num_tied + (before >> 16)
        is_taken = (key > low) | ((key == low) & (tied < room))
        rank = num_above + (before & 0xFFFF) + tl.minimum(tied, room)
        tl.store(out_ptr + rank, entry.to(out_ptr.dtype.element_ty), mask=is_taken)
        every = tl.sum(own, 0)
        num_above += every & 0xFFFF
        num_tied += every >> 16
    return low, num_above + tl.minimum(num_tied, room)


@triton.jit
def _run_keys(
    bits_row, parents_ptr, num_runs, start, end, PER: tl.constexpr, HAS_PARENTS: tl.constexpr,
    RUNS: tl.constexpr,
):  # fmt: skip
    """Entries and keys of RUNS runs of eight from ``start`` on."""
    run = start + tl.arange(0, RUNS)
    first = run * 8
    if HAS_PARENTS:
        parent = tl.load(parents_ptr + run // PER, mask=run < num_runs, other=0)
        first = (parent * PER + run % PER) * 8
    entry = tl.multiple_of(first, 8)[:, None] + tl.arange(0, 8)[None, :]
    is_run = (run < num_runs) & (first < end)
    bits = tl.load(bits_row + entry, mask=is_run[:, None], other=0).to(tl.int32)
    return entry, tl.where(is_run[:, None] & (entry < end), _ordered(bits), EMPTY)


@triton.jit
def _ordered(bits):
    """Map the bits of bf16 to i32 with the same order; -0 and +0 are equal, NaN is below all that
    may be selected."""
    magnitude = bits & 0x7FFF
    key = tl.where(bits < 0, -magnitude, magnitude)
    return tl.where(magnitude > 0x7F80, EMPTY, key)
