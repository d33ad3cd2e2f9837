"""Stores the results of experts where their tokens came from, in the memory of any GPU of the host.

Stores over NVLink are asynchronous: a GEMM sends its results while it continues.

``home`` is row_pair [R] i32, the (token, selected expert) pair of each row; homes [ranks]
i64, addresses of the results of each rank; and most_tokens per rank, ordered by rank.  A rank's
results [T K, N] bf16 have a row for each of the K CHOICES of a token.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from deepinfer.kernels.gluon_names import thread_barrier


@gluon.jit
def home_of(home, row, inside, N, CHOICES: gl.constexpr):
    """Whether each row belongs to a pair, and the address of its result."""
    row_pair, homes, most_tokens = home
    pair = gl.load(row_pair + row, mask=inside, other=-1)
    is_pair = pair >= 0
    token = pair // CHOICES
    there = gl.load(homes + token // most_tokens, mask=is_pair, other=0)
    result = token % most_tokens * CHOICES + pair % CHOICES
    place = (there + result.to(gl.int64) * (2 * N)).to(gl.pointer_type(gl.bfloat16))
    return is_pair, gl.multiple_of(place, 16)


@gluon.jit
def send_piece(home, buffer, total, row, column, N, CHOICES: gl.constexpr):
    """Store [64, 128] sums through shared memory, so that whole rows are stored together."""
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    thread_barrier()  # all threads have read the previous content
    buffer.store(total.to(gl.bfloat16))
    thread_barrier()
    n = column + gl.arange(0, 128, gl.SliceLayout(0, layout))
    for part in gl.static_range(4):  # more at a time would need more registers
        rows = row + part * 16 + gl.arange(0, 16, gl.SliceLayout(1, layout))
        is_pair, place = home_of(home, rows, rows >= 0, N, CHOICES)
        values = buffer.slice(part * 16, 16).load(layout)
        inside = is_pair[:, None] & (n < N)[None, :]
        gl.store(place[:, None] + n[None, :], values, mask=inside)
