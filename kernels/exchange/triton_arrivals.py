"""Gather of the tokens that other ranks sent, from the receive buffer into the order of experts.

Values keep the sender's rounding: words of four E4M3 values are permuted to the weight's order of
K, and scales are converted to the format of the GEMM.
"""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer.kernels.quant.triton_bits import bf16_pair, e4m3_value, e8m0_value

from .triton_kernel import words_at


@triton.jit(do_not_specialize=["scale_stride", "most_tokens", "capacity", "rank"])
def gather_kernel(
    arrived,
    heads,
    tokens,
    row_pair,
    used,
    values,
    scales,
    scale_stride,
    most_tokens,
    capacity,
    rank,
    TOP_K: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    HEAD_BYTES: tl.constexpr,
    WORDS: tl.constexpr,
    BLOCKS: tl.constexpr,
    ROWS: tl.constexpr,
    PATH: tl.constexpr,
    ORDER: tl.constexpr,
):
    """Arrived tokens as rows of experts in the format of ``quantize_activations``; values of this
    rank's own tokens are read from ``tokens``."""
    block = tl.arange(0, BLOCKS)
    end = tl.load(used)
    for tile in tl.range(tl.program_id(0), tl.cdiv(end, ROWS), tl.num_programs(0), num_stages=1):
        row = tile * ROWS + tl.arange(0, ROWS)
        is_row = (row < end)[:, None]
        pair = tl.load(row_pair + row, mask=row < end, other=-1)
        token = tl.maximum(pair, 0) // TOP_K  # padding rows copy any token
        source, number = token // most_tokens, token % most_tokens
        arrival = (source * capacity + number).to(tl.int64)
        start = tl.where(
            (source == rank) & (pair >= 0), tokens + number.to(tl.int64) * WIDTH,
            arrived + arrival * WIDTH,
        )  # fmt: skip
        start = tl.multiple_of(start, 16)[:, None]
        head = heads + (arrival * HEAD_BYTES)[:, None]
        target = row.to(tl.int64)[:, None]
        if PATH == 0:
            half = tl.arange(0, 2 * WORDS)[None, :]
            is_half = is_row & (half < WIDTH // 2)
            codes = tl.load(words_at(start, tl.int16) + half, mask=is_half, other=0)
            exponent = tl.load(head + half // (BLOCK // 2), mask=is_half, other=0)
            scale = e8m0_value(exponent)
            decoded = bf16_pair(_value(codes) * scale, _value(codes >> 8) * scale)
            tl.store(values + target * (WIDTH // 2) + half, decoded, mask=is_half)
        else:
            if ORDER == 2:
                _move_fragments(start, values + target * (WIDTH // 4), is_row, WIDTH, WORDS, ROWS)
            else:
                word = tl.arange(0, WORDS)[None, :]
                is_word = is_row & (word < WIDTH // 4)
                codes = _codes(words_at(start, tl.int32), word, is_word, ORDER)
                tl.store(values + target * (WIDTH // 4) + word, codes, mask=is_word)
            is_block = is_row & (block < WIDTH // BLOCK)[None, :]
            exponent = tl.load(head + block[None, :], mask=is_block, other=0)
            if PATH == 1:
                place = scales + block.to(tl.int64)[None, :] * scale_stride + target
                tl.store(place, e8m0_value(exponent), mask=is_block)
            else:
                place = scales + target * (WIDTH // BLOCK) + block[None, :]
                tl.store(place, exponent, mask=is_block)


@triton.jit
def _codes(row, word, inside, ORDER: tl.constexpr):
    """Words of four E4M3 values of a row, in the order of ``KOrder``."""
    if ORDER == 1:  # even elements of each 128, then the odd ones
        within = word % 32
        source = row + (word - within + within % 16 * 2)
        first = tl.load(source, mask=inside, other=0) >> (within // 16 * 8)
        second = tl.load(source + 1, mask=inside, other=0) >> (within // 16 * 8)
        codes = _every_other_byte(first) | (_every_other_byte(second) << 16)
    else:
        codes = tl.load(row + word, mask=inside, other=0)
    return codes


@triton.jit
def _move_fragments(
    start, target, is_row, WIDTH: tl.constexpr, WORDS: tl.constexpr, ROWS: tl.constexpr
):
    """Copy rows to ``target``, word 8 t + 2 i + h of each 32 to 8 i + 4 h + t: loads are pairs of
    words, and four pairs become eight consecutive words."""
    lane = tl.arange(0, WORDS // 8)[None, :]
    inside = is_row & (lane < WIDTH // 32)
    source = words_at(start, tl.int64) + (lane // 4 * 16 + lane % 4)
    first = tl.load(source, mask=inside, other=0)
    second = tl.load(source + 4, mask=inside, other=0)
    third = tl.load(source + 8, mask=inside, other=0)
    fourth = tl.load(source + 12, mask=inside, other=0)
    even = tl.join(_low_words(first, second), _high_words(first, second))
    odd = tl.join(_low_words(third, fourth), _high_words(third, fourth))
    pairs = tl.reshape(tl.join(even, odd), [ROWS, WORDS // 2])
    pair = tl.arange(0, WORDS // 2)[None, :]
    tl.store(words_at(target, tl.int64) + pair, pairs, mask=is_row & (pair < WIDTH // 8))


@triton.jit
def _low_words(first, second):
    return (first & 0xFFFFFFFF) | (second << 32)


@triton.jit
def _high_words(first, second):
    return ((first >> 32) & 0xFFFFFFFF) | (second & -0x100000000)


@triton.jit
def _value(code):
    """E4M3 to fp32, including NaN."""
    is_nan = (code.to(tl.int32) & 0x7F) == 0x7F
    return tl.where(is_nan, float("nan"), e4m3_value(code))


@triton.jit
def _every_other_byte(word):
    return (word & 0xFF) | ((word >> 8) & 0xFF00)
