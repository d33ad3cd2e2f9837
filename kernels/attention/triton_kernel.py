"""Sparse latent attention in Triton: one program per query and block of heads.

T queries, H heads, D latent width.  The even and the odd values of a row are processed as separate
tiles of D/2: that is how packed FP4 is loaded, and dot products over D do not depend on the order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.kernels.launch import (
    bf16_pairs,
    cdiv,
    has_tensor_memory,
    is_npu,
    matrix_dtype,
    next_power_of_2,
)
from deepinfer.kernels.quant.triton_bits import bf16_pair, even_bf16, odd_bf16, round_bf16
from deepinfer.kernels.quant.triton_rows import main_keys, window_keys
from deepinfer.kernels.relaunch import launch

from .checks import check_operands, main_list

_TILE_KEYS = 64
_MAX_TILE_HEADS = 64
_NPU_TILE_KEYS = 32
_NPU_TILE_HEADS = 16
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
    head_axis: int | None = None,
    lse: Tensor | None = None,
    q_norm_eps: float | None = None,
) -> Tensor:
    """``sparse_attention_reference``; ``rope`` (cos and sin, [T, R] f32 of ``rope_table``) rotates
    q before and un-rotates the output after.

    ``piece_keys`` splits the key lists into pieces of so many keys (a multiple of 64) that run
    concurrently and are combined by a second kernel: faster for few queries.  The bits depend on
    its value, never on other queries.
    ``head_axis``: the dimension of heads in the accumulators.  1 if they are in tensor memory,
    which fits tiles of 128 rows of pairs but not of 64 rows of heads; otherwise 0.
    Numerics: P is rounded to bf16 relative to the running maximum, updated every 64 keys.
    Raises: TensorError for a wrong dtype, shape, device or layout.
    """
    main_index = main_list(main_rows, main_index, window_index)
    check_operands(q, window_rows, window_index, main_rows, main_index, sink, rope, lse)
    num_queries, heads, width = q.shape
    cos, sin = rope if rope is not None else (sink, sink)
    rotary_pairs = cos.shape[1] // 2 if rope is not None else 0
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    if not out.numel():
        return out
    tile_keys, most_heads = _tile_sizes(q.device)
    lengths = (window_index.shape[1], main_index.shape[1])
    num_tiles = sum(cdiv(length, tile_keys) for length in lengths)
    if piece_keys is None or is_npu(q.device):  # Ascend's compiler aborts on split keys
        piece_keys = num_tiles * tile_keys
    piece_tiles = max(1, min(num_tiles, piece_keys // tile_keys))
    num_pieces = max(1, cdiv(num_tiles, piece_tiles))
    if head_axis is None:
        head_axis = 1 if has_tensor_memory(q.device) else 0
    tile_pairs = max(32, next_power_of_2(width // 2))
    tile_heads = min(most_heads, max(16, next_power_of_2(heads)))
    is_whole = num_pieces == 1
    partial = q.new_empty(
        0 if is_whole else num_queries * num_pieces * heads * width, dtype=torch.float32
    )
    state = q.new_empty(
        0 if is_whole else num_queries * num_pieces * heads * 2, dtype=torch.float32
    )
    pairs = bf16_pairs("q", q.contiguous())
    result = bf16_pairs("out", out)
    launch(attention_kernel, (num_queries, cdiv(heads, tile_heads), num_pieces))(
        pairs, window_rows if width % 64 else window_rows.view(torch.int16), window_rows,
        window_index, window_rows if main_rows is None else main_rows, main_index,
        sink, cos, sin, result, partial, state, lse if is_whole else None, q_norm_eps,
        scale * _LOG2_E, *lengths, piece_tiles,
        H=heads, HALF=width // 2, ROTARY=rotary_pairs, TILE_PAIRS=tile_pairs,
        TILE_H=tile_heads, TILE_K=tile_keys, WHOLE=is_whole, DOT=matrix_dtype(),
        HEAD_AXIS=head_axis, num_warps=8, num_stages=1 if head_axis else 2,
        enable_fp_fusion=True,
    )  # fmt: skip
    if not is_whole:
        launch(combine_kernel, (num_queries, heads))(
            partial, state, sink, cos, sin, result, lse, num_pieces,
            H=heads, HALF=width // 2, ROTARY=rotary_pairs, TILE_PAIRS=tile_pairs,
            num_warps=4, enable_fp_fusion=True,
        )  # fmt: skip
    return out


def _tile_sizes(device: torch.device) -> tuple[int, int]:
    """(keys, heads) per tile."""
    return (_NPU_TILE_KEYS, _NPU_TILE_HEADS) if is_npu(device) else (_TILE_KEYS, _MAX_TILE_HEADS)


@triton.jit(do_not_specialize=["piece_tiles"])
def attention_kernel(
    q_ptr, window_pairs_ptr, window_ptr, window_index_ptr, main_ptr, main_index_ptr,
    sink_ptr, cos_ptr, sin_ptr, out_ptr, partial_ptr, state_ptr, lse_ptr,
    q_norm_eps, log2_scale, window_length, main_length, piece_tiles,
    H: tl.constexpr, HALF: tl.constexpr, ROTARY: tl.constexpr, TILE_PAIRS: tl.constexpr,
    TILE_H: tl.constexpr, TILE_K: tl.constexpr, WHOLE: tl.constexpr, DOT: tl.constexpr,
    HEAD_AXIS: tl.constexpr,
):  # fmt: skip
    query = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * TILE_H + tl.arange(0, TILE_H)
    piece = tl.program_id(2)
    is_head = head < H
    pair = tl.arange(0, TILE_PAIRS)
    is_head_2d = tl.expand_dims(is_head, 1 - HEAD_AXIS)
    pair_2d = tl.expand_dims(pair, HEAD_AXIS)
    is_value = is_head_2d & (pair_2d < HALF)
    place = tl.expand_dims(query * H + head, 1 - HEAD_AXIS) * HALF + pair_2d
    packed = tl.load(q_ptr + place, mask=is_value, other=0)
    cos, sin = _rotation(cos_ptr, sin_ptr, query, pair_2d, HALF, ROTARY)
    even, odd = even_bf16(packed), odd_bf16(packed)
    if q_norm_eps is not None:
        square = tl.sum(even * even + odd * odd, 1 - HEAD_AXIS) / (2 * HALF)
        log2_scale *= tl.expand_dims(1.0 / tl.sqrt(square + q_norm_eps), 1 - HEAD_AXIS)
    if ROTARY > 0:
        even, odd = even * cos - odd * sin, even * sin + odd * cos
        even, odd = round_bf16(even), round_bf16(odd)
    q_even, q_odd = even.to(DOT), odd.to(DOT)

    row_max = tl.full([TILE_H], -1e30, tl.float32)
    denom = tl.zeros([TILE_H], tl.float32)
    acc_even = tl.zeros_like(even)
    acc_odd = tl.zeros_like(odd)
    window_tiles = tl.cdiv(window_length, TILE_K)
    num_tiles = window_tiles + tl.cdiv(main_length, TILE_K)
    first = piece * piece_tiles
    last = tl.minimum(first + piece_tiles, num_tiles)
    window_last = tl.minimum(last, window_tiles)
    main_first, main_last = tl.maximum(first, window_tiles) - window_tiles, last - window_tiles
    window_rows = window_index_ptr + query * window_length
    main_rows = main_index_ptr + query * main_length
    if HEAD_AXIS == 0:
        for tile in range(first, window_last):
            index = _listed(window_rows, tile, window_length, TILE_K)
            k_even, k_odd = window_keys(
                window_pairs_ptr, window_ptr, index, HALF, TILE_PAIRS, TILE_K
            )
            row_max, denom, acc_even, acc_odd = _attend(
                q_even, q_odd, k_even, k_odd, index, log2_scale, row_max, denom, acc_even, acc_odd,
                HEAD_AXIS,
            )  # fmt: skip
        for tile in range(main_first, main_last):
            index = _listed(main_rows, tile, main_length, TILE_K)
            k_even, k_odd = main_keys(main_ptr, index, HALF, TILE_PAIRS, TILE_K)
            row_max, denom, acc_even, acc_odd = _attend(
                q_even, q_odd, k_even, k_odd, index, log2_scale, row_max, denom, acc_even, acc_odd,
                HEAD_AXIS,
            )  # fmt: skip
    else:
        # The same without loop-invariant code motion: hoisted addresses would be spilled.
        for tile in tl.range(first, window_last, disable_licm=True):
            index = _listed(window_rows, tile, window_length, TILE_K)
            k_even, k_odd = window_keys(
                window_pairs_ptr, window_ptr, index, HALF, TILE_PAIRS, TILE_K
            )
            row_max, denom, acc_even, acc_odd = _attend(
                q_even, q_odd, k_even, k_odd, index, log2_scale, row_max, denom, acc_even, acc_odd,
                HEAD_AXIS,
            )  # fmt: skip
        for tile in tl.range(main_first, main_last, disable_licm=True):
            index = _listed(main_rows, tile, main_length, TILE_K)
            k_even, k_odd = main_keys(main_ptr, index, HALF, TILE_PAIRS, TILE_K)
            row_max, denom, acc_even, acc_odd = _attend(
                q_even, q_odd, k_even, k_odd, index, log2_scale, row_max, denom, acc_even, acc_odd,
                HEAD_AXIS,
            )  # fmt: skip

    if WHOLE:
        cos, sin = _rotation(cos_ptr, sin_ptr, query, pair_2d, HALF, ROTARY)
        sink = tl.load(sink_ptr + head, mask=is_head, other=0.0)
        factor = tl.expand_dims(_inverse_denominator(row_max, denom, sink), 1 - HEAD_AXIS)
        pairs = _output(acc_even * factor, acc_odd * factor, cos, sin, ROTARY)
        tl.store(out_ptr + place, pairs, mask=is_value)
        if lse_ptr is not None:
            tl.store(lse_ptr + query * H + head, _log_sum_exp(row_max, denom), mask=is_head)
    else:
        part = (query * tl.num_programs(2) + piece) * H + head
        partial = partial_ptr + tl.expand_dims(part, 1 - HEAD_AXIS) * (2 * HALF) + pair_2d
        tl.store(partial, acc_even, mask=is_value)
        tl.store(partial + HALF, acc_odd, mask=is_value)
        tl.store(state_ptr + 2 * part, row_max, mask=is_head)
        tl.store(state_ptr + 2 * part + 1, denom, mask=is_head)


@triton.jit(do_not_specialize=["num_pieces"])
def combine_kernel(
    partial_ptr, state_ptr, sink_ptr, cos_ptr, sin_ptr, out_ptr, lse_ptr, num_pieces,
    H: tl.constexpr, HALF: tl.constexpr, ROTARY: tl.constexpr, TILE_PAIRS: tl.constexpr,
):  # fmt: skip
    query = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    pair = tl.arange(0, TILE_PAIRS)
    is_value = pair < HALF
    row_max, denom = -1e30, 0.0
    acc_even = tl.zeros([TILE_PAIRS], tl.float32)
    acc_odd = tl.zeros([TILE_PAIRS], tl.float32)
    for piece in range(num_pieces):
        part = (query * num_pieces + piece) * H + head
        part_max = tl.load(state_ptr + 2 * part)
        new_max = tl.maximum(row_max, part_max)
        old_factor = tl.exp2(row_max - new_max)
        part_factor = tl.exp2(part_max - new_max)
        partial = partial_ptr + part * (2 * HALF) + pair
        denom = denom * old_factor + tl.load(state_ptr + 2 * part + 1) * part_factor
        acc_even = acc_even * old_factor + tl.load(partial, mask=is_value, other=0.0) * part_factor
        acc_odd = (
            acc_odd * old_factor + tl.load(partial + HALF, mask=is_value, other=0.0) * part_factor
        )
        row_max = new_max
    factor = _inverse_denominator(row_max, denom, tl.load(sink_ptr + head))
    cos, sin = _rotation(cos_ptr, sin_ptr, query, pair, HALF, ROTARY)
    pairs = _output(acc_even * factor, acc_odd * factor, cos, sin, ROTARY)
    tl.store(out_ptr + (query * H + head) * HALF + pair, pairs, mask=is_value)
    if lse_ptr is not None:
        tl.store(lse_ptr + query * H + head, _log_sum_exp(row_max, denom))


@triton.jit
def _listed(index_ptr, tile, length, TILE_K: tl.constexpr):
    """Row indices of a tile of keys, -1 for an empty place."""
    place = tile * TILE_K + tl.arange(0, TILE_K)
    return tl.load(index_ptr + place, mask=place < length, other=-1)


@triton.jit
def _attend(
    q_even, q_odd, k_even, k_odd, index, log2_scale, row_max, denom, acc_even, acc_odd,
    HEAD_AXIS: tl.constexpr,
):  # fmt: skip
    """Online-softmax update with a tile of keys, even and odd values [K, D/2] each; scores, maximum
    and sum are in base 2."""
    k_even, k_odd = k_even.to(q_even.dtype), k_odd.to(q_even.dtype)
    present = index >= 0
    if HEAD_AXIS == 0:
        scores = tl.dot(q_even, tl.trans(k_even))
        scores = tl.dot(q_odd, tl.trans(k_odd), scores) * log2_scale
    else:
        scores = tl.dot(k_even, q_even)
        scores = tl.dot(k_odd, q_odd, scores) * log2_scale
    scores = tl.where(tl.expand_dims(present, HEAD_AXIS), scores, float("-inf"))
    new_max = tl.maximum(row_max, tl.max(scores, 1 - HEAD_AXIS))
    weights = tl.exp2(scores - tl.expand_dims(new_max, 1 - HEAD_AXIS))
    decay = tl.exp2(row_max - new_max)
    denom = denom * decay + tl.sum(weights, 1 - HEAD_AXIS)
    if k_even.dtype == tl.float32:
        weights = round_bf16(weights)
    weights = weights.to(k_even.dtype)
    acc_even *= tl.expand_dims(decay, 1 - HEAD_AXIS)
    acc_odd *= tl.expand_dims(decay, 1 - HEAD_AXIS)
    if HEAD_AXIS == 0:
        acc_even = tl.dot(weights, k_even, acc_even)
        acc_odd = tl.dot(weights, k_odd, acc_odd)
    else:
        acc_even = tl.dot(tl.trans(k_even), weights, acc_even)
        acc_odd = tl.dot(tl.trans(k_odd), weights, acc_odd)
    return new_max, denom, acc_even, acc_odd


@triton.jit
def _rotation(cos_ptr, sin_ptr, query, pair, HALF: tl.constexpr, ROTARY: tl.constexpr):
    """Cosine and sine for each pair; only the last ROTARY pairs are rotated."""
    rotary = pair - (HALF - ROTARY)
    place = 2 * (query * ROTARY + rotary)
    is_rotary = (rotary >= 0) & (rotary < ROTARY)
    cos = tl.load(cos_ptr + place, mask=is_rotary, other=1.0)
    sin = tl.load(sin_ptr + place + 1, mask=is_rotary, other=0.0)
    return cos, sin


@triton.jit
def _inverse_denominator(row_max, denom, sink):
    """1 / softmax denominator, sink included; 0 for a query without keys."""
    whole = denom + tl.exp2(sink * 1.4426950408889634 - row_max)
    return tl.where(denom > 0.0, 1.0 / whole, 0.0)


@triton.jit
def _log_sum_exp(row_max, denom):
    """Log-sum-exp of the scores of keys, natural logarithm; inf for a query without keys."""
    return tl.where(denom == 0.0, float("inf"), (row_max + tl.log2(denom)) * 0.6931471805599453)


@triton.jit
def _output(even, odd, cos, sin, ROTARY: tl.constexpr):
    if ROTARY > 0:
        even, odd = round_bf16(even), round_bf16(odd)
        even, odd = even * cos + odd * sin, odd * cos - even * sin
    return bf16_pair(even, odd)
