"""Dispatch and combine by writing into the memory of the other ranks of this host.

M tokens of any rank at most, T of this one, N = ranks x M arrivals, K choices, d width.  A few
programs write, say so by a flag each, and end: nothing holds a multiprocessor while the link works.
Who reads waits for the flags of all programs of all ranks, in a launch of its own.

No rank waits for another one to have room: a rank ends a round when all others have returned its
results, which they do, rows or none, after they have read its tokens.

Nothing waits for the host and no size depends on the routing: fit for a graph.
"""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer.kernels.quant.triton_bits import (
    bf16_bits,
    bf16_value,
    e4m3_pair,
    e8m0_value,
    even_bf16,
    exponent_above,
    odd_bf16,
)


@triton.jit(do_not_specialize=["num_tokens", "most_tokens", "rank", "capacity", "most_replicas"])
def send_tokens_kernel(
    x,
    ids,
    weights,
    table_rank,
    table_place,
    table_count,
    peers,
    rounds,
    result_row,
    num_tokens,
    most_tokens,
    row_stride,
    rank,
    capacity,
    sent,
    most_replicas,
    RANKS: tl.constexpr,
    CHOICES: tl.constexpr,
    PADDED: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    ROW_BYTES: tl.constexpr,
    PROGRAMS: tl.constexpr,
    TOKENS: tl.constexpr,
    NATIVE: tl.constexpr,
    IS_EXACT: tl.constexpr,
):
    """TOKENS at a time; BLOCKS is their number in a row rounded up to a power of two."""
    SCALES: tl.constexpr = WIDTH // BLOCK
    choice = tl.arange(0, PADDED)[None, :]
    block = tl.arange(0, BLOCKS)
    pair = block[:, None] * (BLOCK // 2) + tl.arange(0, BLOCK // 2)[None, :]
    for start in range(tl.program_id(0) * TOKENS, most_tokens, tl.num_programs(0) * TOKENS):
        token = start + tl.arange(0, TOKENS)
        place_of = token.to(tl.int64)[:, None]
        is_token = token < num_tokens
        inside = is_token[:, None, None] & (pair < WIDTH // 2)[None, :, :]
        source = x + place_of[:, :, None] * row_stride + pair[None, :, :]
        both = tl.load(source, mask=inside, other=0)
        is_choice = is_token[:, None] & (choice < CHOICES)
        source = place_of * CHOICES + choice
        expert = tl.load(ids + source, mask=is_choice, other=0)
        factor = tl.load(weights + source, mask=is_choice, other=0.0).to(tl.int32, bitcast=True)
        # Replicas take turns; ranks begin with different ones.
        turn = (rank + token)[:, None] % tl.load(table_count + expert, mask=is_choice, other=1)
        replica = expert * most_replicas + turn
        owner = tl.load(table_rank + replica, mask=is_choice, other=-1).to(tl.int32)
        place = tl.load(table_place + replica, mask=is_choice, other=-1).to(tl.int32)
        if IS_EXACT:
            slot = tl.where(owner >= 0, source, -1).to(tl.int32)
            tl.store(result_row + source, slot, mask=is_choice)
        rows = tl.reshape(both, (TOKENS * BLOCKS, BLOCK // 2))
        codes, exponent = _quantized(even_bf16(rows), odd_bf16(rows), NATIVE)
        codes = tl.reshape(codes, (TOKENS, BLOCKS, BLOCK // 2))
        exponent = tl.reshape(exponent, (TOKENS, BLOCKS)).to(tl.uint8)
        row = rank * capacity + place_of
        is_sent = (token < most_tokens)[:, None] & (choice < CHOICES)
        for peer in range(RANKS):
            base = tl.load(peers + peer)
            is_there = is_choice & (owner == peer)
            wanted = tl.max(is_there.to(tl.int32), axis=1) > 0
            if not IS_EXACT:
                slot = token * RANKS + peer
                tl.store(result_row + slot, tl.where(wanted, slot, -1), mask=is_token)
            values = _at(base, tl.int16) + row[:, :, None] * (ROW_BYTES // 2) + pair[None, :, :]
            tl.store(values, codes, mask=inside & wanted[:, None, None])
            scales = _at(base, tl.uint8) + row * ROW_BYTES + WIDTH + block[None, :]
            tl.store(scales, exponent, mask=wanted[:, None] & (block < SCALES)[None, :])
            places = _at(base, tl.int32) + row * (ROW_BYTES // 4) + choice
            places += (WIDTH + SCALES + 3) // 4
            tl.store(places, tl.where(is_there, place, -1), mask=is_sent)
            tl.store(places + CHOICES, factor, mask=is_sent)
    _say_so(peers, sent, rank, rounds, RANKS, PROGRAMS)


@triton.jit(do_not_specialize=["num_programs", "most_tokens", "capacity"])
def receive_tokens_kernel(
    arrivals,
    sent,
    rounds,
    places,
    weights,
    num_programs,
    most_tokens,
    capacity,
    RANKS: tl.constexpr,
    CHOICES: tl.constexpr,
    PADDED: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ROW_BYTES: tl.constexpr,
    PROGRAMS: tl.constexpr,
    ROWS: tl.constexpr,
    FLAGS: tl.constexpr,
):
    """Wait, then the places and the weights of ROWS arrivals."""
    _wait(sent, num_programs, RANKS, tl.load(rounds) + 1, PROGRAMS, FLAGS)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    arrival = (row // most_tokens * capacity + row % most_tokens).to(tl.int64)[:, None]
    choice = tl.arange(0, PADDED)[None, :]
    inside = (row < RANKS * most_tokens)[:, None] & (choice < CHOICES)
    source = words_at(arrivals, tl.int32) + arrival * (ROW_BYTES // 4)
    source += (WIDTH + WIDTH // BLOCK + 3) // 4 + choice
    place = tl.load(source, mask=inside, other=-1)
    factor = tl.load(source + CHOICES, mask=inside, other=0)
    target = row.to(tl.int64)[:, None] * CHOICES + choice
    tl.store(places + target, place.to(tl.int64), mask=inside)
    tl.store(weights + target, factor.to(tl.float32, bitcast=True), mask=inside)


@triton.jit(do_not_specialize=["rank", "most_tokens"])
def send_rows_kernel(
    outputs,
    row_pair,
    used,
    peers,
    rounds,
    rank,
    most_tokens,
    results,
    returned,
    RANKS: tl.constexpr,
    CHOICES: tl.constexpr,
    WIDTH: tl.constexpr,
    PART: tl.constexpr,
    COLUMNS: tl.constexpr,
    PROGRAMS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """The exact form: PART numbers of each expert's row to where its token came from, ``results``
    on; COLUMNS is PART rounded up to a power of two."""
    column = tl.arange(0, COLUMNS)[None, :]
    end = tl.load(used)
    for start in range(tl.program_id(0) * ROWS, end, tl.num_programs(0) * ROWS):
        row = start + tl.arange(0, ROWS)
        pair = tl.load(row_pair + row, mask=row < end, other=-1)
        is_here = pair >= 0
        inside = is_here[:, None] & (column < PART)
        source = outputs + row.to(tl.int64)[:, None] * PART + column
        bits = tl.load(source, mask=inside, other=0)
        arrival = pair // CHOICES
        base = tl.load(peers + arrival // most_tokens, mask=is_here, other=0)
        slot = (arrival % most_tokens * CHOICES + pair % CHOICES).to(tl.int64)
        tl.store(_result(base + results, slot, WIDTH) + column, bits, mask=inside)
    _say_so(peers, returned, rank, rounds, RANKS, PROGRAMS)


@triton.jit(do_not_specialize=["rank", "most_tokens"])
def send_sums_kernel(
    outputs,
    pair_row,
    peers,
    rounds,
    rank,
    most_tokens,
    results,
    returned,
    RANKS: tl.constexpr,
    CHOICES: tl.constexpr,
    WIDTH: tl.constexpr,
    PART: tl.constexpr,
    COLUMNS: tl.constexpr,
    PROGRAMS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """The reduced form: what this rank has of each token, added up in one row."""
    column = tl.arange(0, COLUMNS)[None, :]
    count = RANKS * most_tokens
    for start in range(tl.program_id(0) * ROWS, count, tl.num_programs(0) * ROWS):
        arrival = start + tl.arange(0, ROWS)
        total = tl.zeros([ROWS, COLUMNS], tl.float32)
        found = tl.zeros([ROWS], tl.int32)
        for choice in tl.static_range(CHOICES):
            pair = arrival.to(tl.int64) * CHOICES + choice
            row = tl.load(pair_row + pair, mask=arrival < count, other=-1)
            found = found | (row >= 0).to(tl.int32)
            inside = (row >= 0)[:, None] & (column < PART)
            source = outputs + row.to(tl.int64)[:, None] * PART + column
            total += bf16_value(tl.load(source, mask=inside, other=0))
        base = tl.load(peers + arrival // most_tokens, mask=found > 0, other=0)
        slot = (arrival % most_tokens * RANKS + rank).to(tl.int64)
        inside = (found > 0)[:, None] & (column < PART)
        bits = bf16_bits(total).to(tl.int16)
        tl.store(_result(base + results, slot, WIDTH) + column, bits, mask=inside)
    _say_so(peers, returned, rank, rounds, RANKS, PROGRAMS)


@triton.jit(do_not_specialize=["num_programs", "num_senders"])
def end_round_kernel(
    returned,
    rounds,
    num_programs,
    num_senders,
    PROGRAMS: tl.constexpr,
    FLAGS: tl.constexpr,
):
    """Wait for all parts of the results of all ranks; then the round is over here."""
    now = tl.load(rounds) + 1
    _wait(returned, num_programs, num_senders, now, PROGRAMS, FLAGS)
    tl.store(rounds, now)


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
def _say_so(peers, flags, rank, rounds, RANKS: tl.constexpr, PROGRAMS: tl.constexpr):
    """To all ranks, that this program of this rank has written all it has in this round."""
    tl.debug_barrier()  # all threads have
    now = tl.load(rounds) + 1
    for peer in range(RANKS):
        own = _at(tl.load(peers + peer) + flags, tl.int32) + rank * PROGRAMS + tl.program_id(0)
        tl.atomic_xchg(own, now, sem="release", scope="sys")


@triton.jit
def _wait(flags, num_programs, num_senders, now, PROGRAMS: tl.constexpr, FLAGS: tl.constexpr):
    """Until ``num_programs`` of each sender have said so, FLAGS at a time; differences, so that
    numbers may wrap."""
    count = num_senders * num_programs
    for first in range(0, count, FLAGS):
        flag = first + tl.arange(0, FLAGS)
        own = flags + flag // num_programs * PROGRAMS + flag % num_programs
        behind = 1
        while behind > 0:
            seen = tl.atomic_add(own, 0, mask=flag < count, sem="acquire", scope="sys")
            behind = tl.max(tl.where(flag < count, now - seen, 0), axis=0)
    tl.debug_barrier()  # no thread reads before all have seen their flags


@triton.jit
def _result(results, slot, WIDTH: tl.constexpr):
    """Rows [R, 1] of results at addresses [R]."""
    rows = (results + slot * (2 * WIDTH))[:, None].to(tl.pointer_type(tl.int16))
    return tl.multiple_of(rows, [16, 16])


@triton.jit
def _at(address, DTYPE: tl.constexpr):
    """An address, a multiple of 16, as a pointer."""
    return tl.multiple_of(address.to(tl.pointer_type(DTYPE)), 16)


@triton.jit
def words_at(address, DTYPE: tl.constexpr):
    return address.to(tl.pointer_type(DTYPE), bitcast=True)


@triton.jit
def _quantized(even, odd, NATIVE: tl.constexpr):
    """E4M3 pairs i16 and biased exponents i32 of rows that share a scale, as ``quantize_fp8``."""
    even_size = tl.where(even == even, tl.abs(even), 0.0)
    odd_size = tl.where(odd == odd, tl.abs(odd), 0.0)
    largest = tl.max(tl.maximum(even_size, odd_size), axis=1)
    exponent = tl.minimum(exponent_above(tl.maximum(largest, 1e-4) * (1.0 / 448.0)), 246)
    scale = e8m0_value(254 - exponent)[:, None]
    return e4m3_pair(_clamped(even * scale), _clamped(odd * scale), NATIVE), exponent


@triton.jit
def _clamped(x):
    return tl.where(x == x, tl.minimum(tl.maximum(x, -448.0), 448.0), x)
