"""Sparse latent attention in Triton: one program per query and block of heads.

T queries, H heads, D latent width.  A row's values are handled as D/2 pairs, even and odd values
apart: that is how FP4 lies in memory, and products over D do not care about the order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.errors import TensorError
from deepinfer.kernels.launch import bf16_pairs, check_tensor, matrix_dtype
from deepinfer.kernels.quant.triton_bits import (
    bf16_pair,
    e2m1_value,
    e4m3_value,
    e8m0_value,
    even_bf16,
    odd_bf16,
    round_bf16,
)

_TILE_KEYS = 64
_MAX_TILE_HEADS = 64
_LOG2_E = 1.4426950408889634


def sparse_attention_triton(
    q: Tensor,
    window_rows: Tensor,
    window_index: Tensor,
    main_rows: Tensor | None,
    main_index: Tensor | None,
    sink: Tensor,
    scale: float,
    *,
    rope: tuple[Tensor, Tensor] | None = None,
    piece_keys: int | None = None,
) -> Tensor:
    """``sparse_attention_reference``; with ``rope`` (two [T, R] f32 of ``rope_table``) q is rotated
    before and the output turned back after.

    ``piece_keys`` cuts the key lists into pieces of that many keys (a multiple of 64) that run at
    the same time: faster for few queries.  Bits depend on its value, never on the other queries.
    Numerics: P is rounded to bf16 relative to the maximum of the keys so far, in tiles of 64.
    Raises: TensorError for a wrong dtype, shape, device or layout.
    """
    num_queries, heads, width = q.shape
    half = width // 2
    if main_rows is None or main_index is None:
        main_rows, main_index = window_rows[:0], window_index[:, :0]
    else:
        check_tensor("main_rows", main_rows, torch.uint8, (None, half + width // 16), q)
    if width < 64 or width & (width - 1):
        raise TensorError(f"q: expected a power of two from 64 on as head width, found {width}")
    check_tensor("window_rows", window_rows, torch.uint8, (None, width + width // 32), q)
    check_tensor("window_index", window_index, torch.int64, (num_queries, None), q)
    check_tensor("sink", sink, torch.float32, (heads,), q)
    if main_index.shape[1]:
        check_tensor("main_index", main_index, torch.int64, (num_queries, None), q)
    cos, sin = rope if rope is not None else (sink, sink)
    rotary_pairs = cos.shape[1] // 2 if rope is not None else 0
    if rope is not None:
        check_tensor("rope[0]", cos, torch.float32, (num_queries, 2 * rotary_pairs), q)
        check_tensor("rope[1]", sin, torch.float32, (num_queries, 2 * rotary_pairs), q)
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    if not out.numel():
        return out
    lengths = (window_index.shape[1], main_index.shape[1])
    num_tiles = sum(triton.cdiv(length, _TILE_KEYS) for length in lengths)
    piece_tiles = max(1, min(num_tiles, (piece_keys or num_tiles * _TILE_KEYS) // _TILE_KEYS))
    num_pieces = max(1, triton.cdiv(num_tiles, piece_tiles))
    tile_heads = min(_MAX_TILE_HEADS, max(16, triton.next_power_of_2(heads)))
    is_whole = num_pieces == 1
    sums = q.new_empty(
        0 if is_whole else num_queries * num_pieces * heads * width, dtype=torch.float32
    )
    state = q.new_empty(
        0 if is_whole else num_queries * num_pieces * heads * 2, dtype=torch.float32
    )
    pairs = bf16_pairs("q", q.contiguous())
    result = bf16_pairs("out", out)
    attention_kernel[(num_queries, triton.cdiv(heads, tile_heads), num_pieces)](
        pairs, window_rows.view(torch.int16), window_rows, window_index, main_rows, main_index,
        sink, cos, sin, result, sums, state, scale * _LOG2_E, *lengths, piece_tiles,
        H=heads, HALF=half, ROTARY=rotary_pairs, TILE_H=tile_heads, TILE_K=_TILE_KEYS,
        WHOLE=is_whole, DOT=matrix_dtype(), num_warps=8, num_stages=2, enable_fp_fusion=True,
    )  # fmt: skip
    if not is_whole:
        combine_kernel[(num_queries, heads)](
            sums, state, sink, cos, sin, result, num_pieces,
            H=heads, HALF=half, ROTARY=rotary_pairs, num_warps=4, enable_fp_fusion=True,
        )  # fmt: skip
    return out


@triton.jit
def attention_kernel(
    q_ptr, window_pairs_ptr, window_ptr, window_index_ptr, main_ptr, main_index_ptr,
    sink_ptr, cos_ptr, sin_ptr, out_ptr, sums_ptr, state_ptr,
    log2_scale, window_length, main_length, piece_tiles,
    H: tl.constexpr, HALF: tl.constexpr, ROTARY: tl.constexpr, TILE_H: tl.constexpr,
    TILE_K: tl.constexpr, WHOLE: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    query = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * TILE_H + tl.arange(0, TILE_H)
    piece = tl.program_id(2)
    is_head = head < H
    pair = tl.arange(0, HALF)
    row = query * H + head
    place = row[:, None] * HALF + pair[None, :]
    packed = tl.load(q_ptr + place, mask=is_head[:, None], other=0)
    cos, sin = _rotation(cos_ptr, sin_ptr, query, HALF, ROTARY)
    even, odd = even_bf16(packed), odd_bf16(packed)
    if ROTARY > 0:
        even, odd = even * cos - odd * sin, even * sin + odd * cos
        even, odd = round_bf16(even), round_bf16(odd)
    q_even, q_odd = even.to(DOT), odd.to(DOT)

    highest = tl.full([TILE_H], -1e30, tl.float32)
    total = tl.zeros([TILE_H], tl.float32)
    sum_even = tl.zeros([TILE_H, HALF], tl.float32)
    sum_odd = tl.zeros([TILE_H, HALF], tl.float32)
    window_tiles = tl.cdiv(window_length, TILE_K)
    num_tiles = window_tiles + tl.cdiv(main_length, TILE_K)
    first = piece * piece_tiles
    last = tl.minimum(first + piece_tiles, num_tiles)
    for tile in range(first, tl.minimum(last, window_tiles)):
        place_k = tile * TILE_K + tl.arange(0, TILE_K)
        is_listed = place_k < window_length
        index_ptr = window_index_ptr + query * window_length + place_k
        index = tl.load(index_ptr, mask=is_listed, other=-1)
        k_even, k_odd = _window_keys(window_pairs_ptr, window_ptr, index, HALF, TILE_K)
        highest, total, sum_even, sum_odd = _attend(
            q_even, q_odd, k_even.to(DOT), k_odd.to(DOT), index >= 0, log2_scale,
            highest, total, sum_even, sum_odd,
        )  # fmt: skip
    for tile in range(tl.maximum(first, window_tiles) - window_tiles, last - window_tiles):
        place_k = tile * TILE_K + tl.arange(0, TILE_K)
        is_listed = place_k < main_length
        index_ptr = main_index_ptr + query * main_length + place_k
        index = tl.load(index_ptr, mask=is_listed, other=-1)
        k_even, k_odd = _main_keys(main_ptr, index, HALF, TILE_K)
        highest, total, sum_even, sum_odd = _attend(
            q_even, q_odd, k_even.to(DOT), k_odd.to(DOT), index >= 0, log2_scale,
            highest, total, sum_even, sum_odd,
        )  # fmt: skip

    if WHOLE:
        sink = tl.load(sink_ptr + head, mask=is_head, other=0.0)
        factor = _normaliser(highest, total, sink)[:, None]
        pairs = _output(sum_even * factor, sum_odd * factor, cos, sin, ROTARY)
        tl.store(out_ptr + place, pairs, mask=is_head[:, None])
    else:
        part = (query * tl.num_programs(2) + piece) * H + head
        sums = sums_ptr + part[:, None] * (2 * HALF) + pair[None, :]
        tl.store(sums, sum_even, mask=is_head[:, None])
        tl.store(sums + HALF, sum_odd, mask=is_head[:, None])
        tl.store(state_ptr + 2 * part, highest, mask=is_head)
        tl.store(state_ptr + 2 * part + 1, total, mask=is_head)


@triton.jit
def combine_kernel(
    sums_ptr, state_ptr, sink_ptr, cos_ptr, sin_ptr, out_ptr, num_pieces,
    H: tl.constexpr, HALF: tl.constexpr, ROTARY: tl.constexpr,
):  # fmt: skip
    query = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    pair = tl.arange(0, HALF)
    highest, total = -1e30, 0.0
    sum_even = tl.zeros([HALF], tl.float32)
    sum_odd = tl.zeros([HALF], tl.float32)
    for piece in range(num_pieces):
        part = (query * num_pieces + piece) * H + head
        part_highest = tl.load(state_ptr + 2 * part)
        new_highest = tl.maximum(highest, part_highest)
        old_factor = tl.exp2(highest - new_highest)
        part_factor = tl.exp2(part_highest - new_highest)
        sums = sums_ptr + part * (2 * HALF) + pair
        total = total * old_factor + tl.load(state_ptr + 2 * part + 1) * part_factor
        sum_even = sum_even * old_factor + tl.load(sums) * part_factor
        sum_odd = sum_odd * old_factor + tl.load(sums + HALF) * part_factor
        highest = new_highest
    factor = _normaliser(highest, total, tl.load(sink_ptr + head))
    cos, sin = _rotation(cos_ptr, sin_ptr, query, HALF, ROTARY)
    cos, sin = tl.reshape(cos, (HALF,)), tl.reshape(sin, (HALF,))
    pairs = _output(sum_even * factor, sum_odd * factor, cos, sin, ROTARY)
    tl.store(out_ptr + (query * H + head) * HALF + pair, pairs)


@triton.jit
def _attend(q_even, q_odd, k_even, k_odd, present, log2_scale, highest, total, sum_even, sum_odd):
    """One tile of keys [K, D/2] twice; scores, maxima and sums are in powers of two."""
    scores = tl.dot(q_even, tl.trans(k_even))
    scores = tl.dot(q_odd, tl.trans(k_odd), scores) * log2_scale
    scores = tl.where(present[None, :], scores, float("-inf"))
    new_highest = tl.maximum(highest, tl.max(scores, 1))
    weights = tl.exp2(scores - new_highest[:, None])
    decay = tl.exp2(highest - new_highest)
    total = total * decay + tl.sum(weights, 1)
    weights = weights.to(k_even.dtype)
    sum_even = tl.dot(weights, k_even, sum_even * decay[:, None])
    sum_odd = tl.dot(weights, k_odd, sum_odd * decay[:, None])
    return new_highest, total, sum_even, sum_odd


@triton.jit
def _window_keys(pairs_ptr, bytes_ptr, index, HALF: tl.constexpr, TILE_K: tl.constexpr):
    """Even and odd values, fp32 [K, D/2], of FP8 rows; a row of index -1 is 0."""
    BLOCKS: tl.constexpr = HALF // 16
    ROW_PAIRS: tl.constexpr = HALF + BLOCKS // 2
    present = (index >= 0)[:, None]
    pair = tl.arange(0, HALF)[None, :]
    block = tl.arange(0, BLOCKS)[None, :]
    values = tl.load(pairs_ptr + index[:, None] * ROW_PAIRS + pair, mask=present, other=0)
    scale_ptr = bytes_ptr + index[:, None] * (2 * ROW_PAIRS) + 2 * HALF + block
    scales = e8m0_value(tl.load(scale_ptr, mask=present, other=0))
    even = _scaled(e4m3_value(values), scales, TILE_K, BLOCKS, 16)
    odd = _scaled(e4m3_value(values >> 8), scales, TILE_K, BLOCKS, 16)
    return even, odd


@triton.jit
def _main_keys(bytes_ptr, index, HALF: tl.constexpr, TILE_K: tl.constexpr):
    """Even and odd values, fp32 [K, D/2], of FP4 rows; a row of index -1 is 0."""
    BLOCKS: tl.constexpr = HALF // 8
    ROW: tl.constexpr = HALF + BLOCKS
    present = (index >= 0)[:, None]
    row_ptr = bytes_ptr + index[:, None] * ROW
    values = tl.load(row_ptr + tl.arange(0, HALF)[None, :], mask=present, other=0)
    scale_ptr = row_ptr + HALF + tl.arange(0, BLOCKS)[None, :]
    scales = e4m3_value(tl.load(scale_ptr, mask=present, other=0))
    even = _scaled(e2m1_value(values), scales, TILE_K, BLOCKS, 8)
    odd = _scaled(e2m1_value(values >> 4), scales, TILE_K, BLOCKS, 8)
    return even, odd


@triton.jit
def _scaled(values, scales, ROWS: tl.constexpr, BLOCKS: tl.constexpr, SIZE: tl.constexpr):
    blocks = tl.reshape(values, (ROWS, BLOCKS, SIZE)) * scales[:, :, None]
    return tl.reshape(blocks, (ROWS, BLOCKS * SIZE))


@triton.jit
def _rotation(cos_ptr, sin_ptr, query, HALF: tl.constexpr, ROTARY: tl.constexpr):
    """Cosine and sine of every pair, [1, D/2]; only the last ROTARY pairs turn."""
    turning = tl.arange(0, HALF)[None, :] - (HALF - ROTARY)
    place = 2 * (query * ROTARY + turning)
    cos = tl.load(cos_ptr + place, mask=turning >= 0, other=1.0)
    sin = tl.load(sin_ptr + place + 1, mask=turning >= 0, other=0.0)
    return cos, sin


@triton.jit
def _normaliser(highest, total, sink):
    """One over the softmax denominator; 0 for a query without keys."""
    whole = total + tl.exp2(sink * 1.4426950408889634 - highest)
    return tl.where(total > 0.0, 1.0 / whole, 0.0)


@triton.jit
def _output(even, odd, cos, sin, ROTARY: tl.constexpr):
    if ROTARY > 0:
        even, odd = round_bf16(even), round_bf16(odd)
        even, odd = even * cos + odd * sin, odd * cos - even * sin
    return bf16_pair(even, odd)
