"""Combine fused into the epilogue: results of experts are stored where their tokens came from, in
the memory of any GPU of the host.

Stores over NVLink are asynchronous, so the GEMM goes on meanwhile.

``home`` is a tuple: row_pair [R] i32, the (token, expert) pair of each row; homes [ranks] i64, the
addresses of the result buffers of all ranks; and most_tokens, the number of token slots per rank:
tokens are numbered rank by rank.  A result buffer [T TOP_K, N] bf16 has one row per pair.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from deepinfer.kernels.gluon_names import thread_barrier


@gluon.jit
def home_of(home, row, inside, N, TOP_K: gl.constexpr):
    """Whether each row belongs to a pair, and the pointer to the start of its result."""
    row_pair, homes, most_tokens = home
    pair = gl.load(row_pair + row, mask=inside, other=-1)
    is_pair = pair >= 0
    token = pair // TOP_K
    there = gl.load(homes + token // most_tokens, mask=is_pair, other=0)
    result = token % most_tokens * TOP_K + pair % TOP_K
    place = (there + result.to(gl.int64) * (2 * N)).to(gl.pointer_type(gl.bfloat16))
    return is_pair, gl.multiple_of(place, 16)


@gluon.jit
def send_subtile(home, buffer, acc, row, column, N, TOP_K: gl.constexpr):
    """Store a [64, 128] accumulator through shared memory, for coalesced stores of whole rows."""
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    thread_barrier()  # all threads have read the previous sub-tile
    buffer.store(acc.to(gl.bfloat16))
    thread_barrier()
    n = column + gl.arange(0, 128, gl.SliceLayout(0, layout))
    for part in gl.static_range(4):  # more at once would need more registers
        rows = row + part * 16 + gl.arange(0, 16, gl.SliceLayout(1, layout))
        is_pair, place = home_of(home, rows, rows >= 0, N, TOP_K)
        values = buffer.slice(part * 16, 16).load(layout)
        inside = is_pair[:, None] & (n < N)[None, :]
        gl.store(place[:, None] + n[None, :], values, mask=inside)
