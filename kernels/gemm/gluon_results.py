"""Results of experts stored where their tokens came from, in the memory of any GPU of the host.

Stores over NVLink wait for nobody: a product sends its results while it goes on.

``home`` is row_pair [R] i32, the pair of token and choice of each row; homes [ranks] i64, where
the results of each rank are; and most_tokens of each, whose tokens stand rank by rank.  A rank's
results [T K, N] bf16 have a row for each of the K CHOICES of a token.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from deepinfer.kernels.gluon_names import thread_barrier


@gluon.jit
def home_of(home, row, inside, N, CHOICES: gl.constexpr):
    """Whether each row is of a pair, and where it begins."""
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
    """Store [64, 128] sums by way of shared memory, so that whole rows leave together."""
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    thread_barrier()  # all have read what was there before
    buffer.store(total.to(gl.bfloat16))
    thread_barrier()
    n = column + gl.arange(0, 128, gl.SliceLayout(0, layout))
    for part in gl.static_range(4):  # more at once would need more registers
        rows = row + part * 16 + gl.arange(0, 16, gl.SliceLayout(1, layout))
        is_pair, place = home_of(home, rows, rows >= 0, N, CHOICES)
        values = buffer.slice(part * 16, 16).load(layout)
        inside = is_pair[:, None] & (n < N)[None, :]
        gl.store(place[:, None] + n[None, :], values, mask=inside)
