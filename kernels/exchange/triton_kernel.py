"""Dispatch and combine by writing into the memory of the other ranks of this host.

T tokens here, at most M on any rank, N = ranks x M arrivals, K choices, d width.  A row is written,
then its flag says in which round; who needs the row waits for the flag.  No rank waits for another
one to have room: a rank writes the arrivals of the next round only after it has read all results of
this one, which the others send only after they have read its arrivals.

Nothing waits for the host and no size depends on the routing: fit for a graph.
"""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer.kernels.quant.triton_bits import (
    bf16_bits,
    bf16_pair,
    bf16_value,
    e4m3_pair,
    e4m3_value,
    e8m0_value,
    even_bf16,
    exponent_above,
    odd_bf16,
)


@triton.jit(do_not_specialize=["num_tokens", "rank", "capacity", "most_replicas"])
def send_tokens_kernel(
    x,
    ids,
    weights,
    table_rank,
    table_place,
    table_count,
    peers,
    round_number,
    ranks,
    num_tokens,
    row_stride,
    rank,
    capacity,
    arrived,
    most_replicas,
    RANKS: tl.constexpr,
    CHOICES: tl.constexpr,
    PADDED: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCKS: tl.constexpr,
    ROW_BYTES: tl.constexpr,
    NATIVE: tl.constexpr,
):
    token = tl.program_id(0)
    row = (rank * capacity + token).to(tl.int64)
    choice = tl.arange(0, PADDED)
    is_token = token < num_tokens
    is_choice = choice < tl.where(is_token, CHOICES, 0)
    source = token.to(tl.int64) * CHOICES + choice
    expert = tl.load(ids + source, mask=is_choice, other=0)
    # Replicas take turns; ranks begin with different ones.
    turn = (rank + token) % tl.load(table_count + expert, mask=is_choice, other=1)
    replica = expert * most_replicas + turn
    owner = tl.load(table_rank + replica, mask=is_choice, other=-1).to(tl.int32)
    place = tl.load(table_place + replica, mask=is_choice, other=-1).to(tl.int32)
    factor = tl.load(weights + source, mask=is_choice, other=0.0)
    tl.store(ranks + source, owner, mask=is_choice)
    block = tl.arange(0, BLOCKS)
    pair = block[:, None] * 16 + tl.arange(0, 16)[None, :]
    inside = pair < tl.where(is_token, WIDTH // 2, 0)
    both = tl.load(x + token.to(tl.int64) * row_stride + pair, mask=inside, other=0)
    codes, exponent = _quantized(even_bf16(both), odd_bf16(both), NATIVE)
    for peer in range(RANKS):
        if _is_among(owner, peer):
            start = tl.load(peers + peer) + row * ROW_BYTES
            tl.store(_at(start, tl.int16) + pair, codes, mask=inside)
            scales = _at(start, tl.uint8) + WIDTH + block
            tl.store(scales, exponent.to(tl.uint8), mask=block < WIDTH // 32)
    for peer in range(RANKS):
        start = tl.load(peers + peer) + row * ROW_BYTES
        here = tl.where(owner == peer, place, -1)
        places = _at(start, tl.int32) + (WIDTH + WIDTH // 32) // 4 + choice
        tl.store(places, here, mask=choice < CHOICES)
        tl.store(places + CHOICES, factor.to(tl.int32, bitcast=True), mask=choice < CHOICES)
    tl.debug_barrier()  # all threads have written before one says so
    now = tl.load(round_number)
    for peer in range(RANKS):
        flags = _at(tl.load(peers + peer) + arrived, tl.int32)
        tl.atomic_xchg(flags + row, now, sem="release", scope="sys")


@triton.jit(do_not_specialize=["most_tokens", "capacity"])
def receive_tokens_kernel(
    arrivals,
    arrived,
    round_number,
    x,
    places,
    weights,
    most_tokens,
    capacity,
    CHOICES: tl.constexpr,
    PADDED: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCKS: tl.constexpr,
    ROW_BYTES: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    arrival = row // most_tokens * capacity + row % most_tokens
    _wait(arrived + arrival, tl.load(round_number))
    start = arrivals + arrival * ROW_BYTES
    choice = tl.arange(0, PADDED)
    is_choice = choice < CHOICES
    source = (start + WIDTH + WIDTH // 32).to(tl.pointer_type(tl.int32), bitcast=True) + choice
    place = tl.load(source, mask=is_choice, other=-1)
    factor = tl.load(source + CHOICES, mask=is_choice, other=0)
    tl.store(places + row * CHOICES + choice, place.to(tl.int64), mask=is_choice)
    factor = factor.to(tl.float32, bitcast=True)
    tl.store(weights + row * CHOICES + choice, factor, mask=is_choice)
    if tl.max(place, 0) >= 0:
        block = tl.arange(0, BLOCKS)
        pair = block[:, None] * 16 + tl.arange(0, 16)[None, :]
        inside = pair < WIDTH // 2
        exponent = tl.load(start + WIDTH + block, mask=block < WIDTH // 32, other=0)
        scale = e8m0_value(exponent)[:, None]
        values = start.to(tl.pointer_type(tl.int16), bitcast=True)
        codes = tl.load(values + pair, mask=inside, other=0)
        even, odd = _value(codes) * scale, _value(codes >> 8) * scale
        tl.store(x + row * (WIDTH // 2) + pair, bf16_pair(even, odd), mask=inside)


@triton.jit(do_not_specialize=["rank", "most_tokens"])
def send_results_kernel(
    outputs,
    row_of_pair,
    peers,
    round_number,
    rank,
    most_tokens,
    results,
    returned,
    CHOICES: tl.constexpr,
    SLOTS: tl.constexpr,
    WIDTH: tl.constexpr,
    IS_EXACT: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    peer, token = row // most_tokens, row % most_tokens
    sources = row_of_pair + row * CHOICES
    column = tl.arange(0, COLUMNS)
    inside = column < WIDTH
    if IS_EXACT:
        slot = tl.program_id(1)
        source = tl.load(sources + slot).to(tl.int64)
        is_here = source >= 0
        present = column < tl.where(is_here, WIDTH, 0)
        bits = tl.load(outputs + source * WIDTH + column, mask=present, other=0)
    else:
        slot = rank
        is_here = False
        total = tl.zeros([COLUMNS], tl.float32)
        for choice in tl.static_range(CHOICES):  # loads that wait for nothing
            source = tl.load(sources + choice).to(tl.int64)
            is_here = is_here | (source >= 0)
            present = column < tl.where(source >= 0, WIDTH, 0)
            part = tl.load(outputs + source * WIDTH + column, mask=present, other=0)
            total += bf16_value(part)
        bits = bf16_bits(total).to(tl.int16)
    if is_here:
        base = tl.load(peers + peer)
        place = token * SLOTS + slot
        target = _at(base + results + place * (2 * WIDTH), tl.int16)
        tl.store(target + column, bits, mask=inside)
        tl.debug_barrier()
        flags = _at(base + returned, tl.int32)
        tl.atomic_xchg(flags + place, tl.load(round_number), sem="release", scope="sys")


@triton.jit
def receive_results_kernel(
    results,
    returned,
    round_number,
    ranks,
    out,
    CHOICES: tl.constexpr,
    PADDED: tl.constexpr,
    SLOTS: tl.constexpr,
    WIDTH: tl.constexpr,
    IS_EXACT: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    now = tl.load(round_number)
    choice = tl.arange(0, PADDED)
    owner = tl.load(ranks + token * CHOICES + choice, mask=choice < CHOICES, other=-1)
    for slot in tl.static_range(SLOTS):
        if IS_EXACT or _is_among(owner, slot):
            _wait(returned + token * SLOTS + slot, now)
    column = tl.arange(0, COLUMNS)
    inside = column < WIDTH
    total = tl.zeros([COLUMNS], tl.float32)
    for slot in tl.static_range(SLOTS):
        source = results + (token * SLOTS + slot) * WIDTH + column
        if not IS_EXACT:
            inside = column < tl.where(_is_among(owner, slot), WIDTH, 0)
        total += bf16_value(tl.load(source, mask=inside, other=0))
    tl.store(out + token * WIDTH + column, total, mask=column < WIDTH)


@triton.jit(do_not_specialize=["address"])
def copy_blocks_kernel(
    source, rows, address, targets, width, IS_WIDE: tl.constexpr, TILE: tl.constexpr
):
    row = tl.load(rows + tl.program_id(0))
    target = tl.load(targets + tl.program_id(0))
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    values = tl.load(source + row * width + column, mask=column < width, other=0)
    if IS_WIDE:
        out = _at(address.to(tl.int64), tl.int32) + target * width
    else:
        out = address.to(tl.int64).to(tl.pointer_type(tl.uint8)) + target * width
    tl.store(out + column, values, mask=column < width)


@triton.jit
def _is_among(owner, rank):
    return tl.max((owner == rank).to(tl.int32), 0) > 0


@triton.jit
def _wait(flag, now):
    """Until the flag has this round's number; differences, so that numbers may wrap around."""
    while tl.atomic_add(flag, 0, sem="acquire", scope="sys") - now < 0:
        pass
    tl.debug_barrier()  # no thread reads before one has seen the flag


@triton.jit
def _at(address, DTYPE: tl.constexpr):
    """An address, a multiple of 16, as a pointer."""
    return tl.multiple_of(address.to(tl.pointer_type(DTYPE)), 16)


@triton.jit
def _quantized(even, odd, NATIVE: tl.constexpr):
    """E4M3 pairs i16 and biased exponents i32 of blocks of 32 numbers, as ``quantize_fp8``."""
    even_size = tl.where(even == even, tl.abs(even), 0.0)
    odd_size = tl.where(odd == odd, tl.abs(odd), 0.0)
    largest = tl.max(tl.maximum(even_size, odd_size), axis=1)
    exponent = tl.minimum(exponent_above(tl.maximum(largest, 1e-4) * (1.0 / 448.0)), 246)
    scale = e8m0_value(254 - exponent)[:, None]
    return e4m3_pair(_clamped(even * scale), _clamped(odd * scale), NATIVE), exponent


@triton.jit
def _clamped(x):
    return tl.where(x == x, tl.minimum(tl.maximum(x, -448.0), 448.0), x)


@triton.jit
def _value(code):
    """fp32 of E4M3 codes, NaN included."""
    is_nan = (code.to(tl.int32) & 0x7F) == 0x7F
    return tl.where(is_nan, float("nan"), e4m3_value(code))
