"""Kernels of the expert exchange between the GPUs of a host, each with a buffer open to all others.

At most M tokens per rank, T of this one, N = ranks x M arrived tokens, top K, d width.  Dispatch:
tokens are quantized already; copy engines send them, then their headers (``heads_kernel``), then
the round number, for which the receiver waits in a launch of its own.

Combine: results are stored by the kernel that computes them or by ``send_rows_kernel``.  They are
complete when the next kernel on the stream starts: ``end_round_kernel`` signals this to all ranks
and waits for their signals.

No rank waits for free space at another: a rank ends a round when all others have returned its
results (or have none), and they do so after they have read its tokens.

The host does not synchronize and no size depends on the routing, so CUDA graphs can capture this.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(
    do_not_specialize=["num_tokens", "most_tokens", "scale_stride", "rank", "most_replicas"]
)
def heads_kernel(
    ids,
    weights,
    scales,
    table_rank,
    table_place,
    table_count,
    heads,
    sent,
    rounds,
    result_row,
    num_tokens,
    most_tokens,
    scale_stride,
    rank,
    most_replicas,
    TOP_K: tl.constexpr,
    TOP_K_PADDED: tl.constexpr,
    SCALES: tl.constexpr,
    BLOCKS: tl.constexpr,
    HEAD_BYTES: tl.constexpr,
    PATH: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """Write the headers of TOKENS tokens per program, and the round number.  TOP_K_PADDED and
    BLOCKS are TOP_K and SCALES rounded up to powers of two.  Headers beyond num_tokens have no
    owners."""
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)[:, None]
    is_token = token < num_tokens
    head = heads + token.to(tl.int64) * HEAD_BYTES
    block = tl.arange(0, BLOCKS)[None, :]
    is_scale = is_token & (block < SCALES)
    if PATH == 1:
        source = block.to(tl.int64) * scale_stride + token
        scale = tl.load(scales + source, mask=is_scale, other=0.0)
        exponent = scale.to(tl.int32, bitcast=True) >> 23
    else:
        exponent = tl.load(scales + token.to(tl.int64) * SCALES + block, mask=is_scale, other=0)
    tl.store(head + block, exponent.to(tl.uint8), mask=is_scale)
    choice = tl.arange(0, TOP_K_PADDED)[None, :]
    is_choice = is_token & (choice < TOP_K)
    source = token.to(tl.int64) * TOP_K + choice
    expert = tl.load(ids + source, mask=is_choice, other=0)
    factor = tl.load(weights + source, mask=is_choice, other=0.0).to(tl.int32, bitcast=True)
    # Round robin over the replicas of an expert; ranks start with different ones.
    turn = (rank + token) % tl.load(table_count + expert, mask=is_choice, other=1)
    replica = expert * most_replicas + turn
    owner = tl.load(table_rank + replica, mask=is_choice, other=-1).to(tl.int32)
    place = tl.load(table_place + replica, mask=is_choice, other=-1).to(tl.int32)
    tl.store(result_row + source, tl.where(owner >= 0, source, -1).to(tl.int32), mask=is_choice)
    owner = tl.where(is_choice & (owner >= 0), owner * 65536 + place, -1)
    words = words_at(head, tl.int32) + (SCALES + 3) // 4 + choice
    is_head = (token < most_tokens) & (choice < TOP_K)
    tl.store(words, owner, mask=is_head)
    tl.store(words + TOP_K, factor, mask=is_head)
    if tl.program_id(0) == 0:
        tl.store(sent + rank, tl.load(rounds) + 1)


@triton.jit(do_not_specialize=["most_tokens", "capacity", "rank"])
def receive_tokens_kernel(
    heads,
    sent,
    rounds,
    places,
    weights,
    most_tokens,
    capacity,
    rank,
    RANKS: tl.constexpr,
    TOP_K: tl.constexpr,
    TOP_K_PADDED: tl.constexpr,
    SCALES: tl.constexpr,
    HEAD_BYTES: tl.constexpr,
    ROWS: tl.constexpr,
    FLAGS: tl.constexpr,
):
    """Wait for all ranks, then read local expert indices and weights of ROWS arrived tokens."""
    _wait(sent, tl.load(rounds) + 1, RANKS, FLAGS)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    arrival = (row // most_tokens * capacity + row % most_tokens).to(tl.int64)[:, None]
    choice = tl.arange(0, TOP_K_PADDED)[None, :]
    inside = (row < RANKS * most_tokens)[:, None] & (choice < TOP_K)
    source = words_at(heads, tl.int32) + arrival * (HEAD_BYTES // 4) + (SCALES + 3) // 4 + choice
    owner = tl.load(source, mask=inside, other=-1)
    place = tl.where(owner >> 16 == rank, owner & 65535, -1)
    factor = tl.load(source + TOP_K, mask=inside, other=0)
    target = row.to(tl.int64)[:, None] * TOP_K + choice
    tl.store(places + target, place.to(tl.int64), mask=inside)
    tl.store(weights + target, factor.to(tl.float32, bitcast=True), mask=inside)


@triton.jit(do_not_specialize=["most_tokens"])
def send_rows_kernel(
    outputs,
    row_pair,
    used,
    homes,
    most_tokens,
    TOP_K: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Store each row of the experts where its token came from; COLUMNS is WIDTH rounded up to a
    power of two."""
    column = tl.arange(0, COLUMNS)[None, :]
    end = tl.load(used)
    for start in range(tl.program_id(0) * ROWS, end, tl.num_programs(0) * ROWS):
        row = start + tl.arange(0, ROWS)
        pair = tl.load(row_pair + row, mask=row < end, other=-1)
        is_here = pair >= 0
        inside = is_here[:, None] & (column < WIDTH)
        source = outputs + row.to(tl.int64)[:, None] * WIDTH + column
        bits = tl.load(source, mask=inside, other=0)
        token = pair // TOP_K
        home = tl.load(homes + token // most_tokens, mask=is_here, other=0)
        result = (token % most_tokens * TOP_K + pair % TOP_K).to(tl.int64)
        target = (home + result * (2 * WIDTH))[:, None].to(tl.pointer_type(tl.int16))
        tl.store(tl.multiple_of(target, [16, 16]) + column, bits, mask=inside)


@triton.jit(do_not_specialize=["rank", "apart"])
def end_round_kernel(
    returned, homes, rounds, rank, apart, RANKS: tl.constexpr, FLAGS: tl.constexpr
):
    """Signal to all ranks that this one has returned all results, wait for their signals, and count
    the round.  The flags are ``apart`` bytes after the start of the results."""
    now = tl.load(rounds) + 1
    for peer in range(RANKS):
        flag = _at(tl.load(homes + peer) + apart) + rank
        tl.atomic_xchg(flag, now, sem="release", scope="sys")
    _wait(returned, now, RANKS, FLAGS)
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
        out = _at(address.to(tl.int64)) + target * width
    else:
        out = address.to(tl.int64).to(tl.pointer_type(tl.uint8)) + target * width
    tl.store(out + column, values, mask=column < width)


@triton.jit
def _wait(flags, now, RANKS: tl.constexpr, FLAGS: tl.constexpr):
    """Spin until all flags are ``now`` or later; compares differences, so that counters may wrap.
    FLAGS is the number of threads, each of which polls at most one flag."""
    rank = tl.arange(0, FLAGS)
    behind = 1
    while behind > 0:
        seen = tl.atomic_add(flags + rank, 0, mask=rank < RANKS, sem="acquire", scope="sys")
        behind = tl.max(tl.where(rank < RANKS, now - seen, 0), axis=0)
    tl.debug_barrier()  # no thread goes on before all have seen their flags


@triton.jit
def _at(address):
    """An address that is a multiple of 16, as a pointer."""
    return tl.multiple_of(address.to(tl.pointer_type(tl.int32)), 16)


@triton.jit
def words_at(address, DTYPE: tl.constexpr):
    return address.to(tl.pointer_type(DTYPE), bitcast=True)
