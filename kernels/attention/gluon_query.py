"""The query of an item in the Hopper attention kernel: loaded to shared memory and rotated
there."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from deepinfer.kernels.gluon_names import load_tile, seen_as

from .gluon_work import (
    FACTORS,
    HALF,
    HEADS,
    QUERY_READ,
    QUERY_THERE,
    TILE_BF16,
    WIDTH,
)

# The last 64 values of a head, and the same as pairs.
LAST = gl.constexpr(gl.BlockedLayout([1, 8], [8, 4], [4, 1], [1, 0]))
LAST_PAIRS = gl.constexpr(gl.BlockedLayout([1, 4], [8, 4], [4, 1], [1, 0]))


@gluon.jit
def fetch_query(shared, q, query, phase):
    """Issue the load of a query, 64 heads x 512 bf16, once the previous one has been read."""
    queries, _, _, _, _, _, barriers = shared
    left_right = seen_as(queries, gl.bfloat16, [2, HEADS, HALF], TILE_BF16)
    there = barriers.index(QUERY_THERE)
    mbarrier.wait(barriers.index(QUERY_READ), phase)
    mbarrier.expect(there, 2 * HEADS * WIDTH)
    load_tile(q, [query * HEADS, 0], there, left_right.index(0))
    load_tile(q, [query * HEADS, HALF], there, left_right.index(1))


@gluon.jit
def rotation(cos_ptr, sin_ptr, query, ROTARY: gl.constexpr):
    """Cosine and sine of the last 32 pairs, of which the last ROTARY are rotated."""
    turning = gl.arange(0, 32, gl.SliceLayout(0, LAST_PAIRS)) - (32 - ROTARY)
    place = 2 * (query * ROTARY + turning)
    cos = gl.load(cos_ptr + place, mask=turning >= 0, other=1.0)
    sin = gl.load(sin_ptr + place + 1, mask=turning >= 0, other=0.0)
    return cos, sin


@gluon.jit
def norm_query(shared, log2_scale, eps, phase):
    """Store factors of scores, [64 heads] f32, that normalize the query to unit root mean
    square."""
    queries, _, _, _, states, _, barriers = shared
    mbarrier.wait(barriers.index(QUERY_THERE), phase)
    squares = gl.zeros([HEADS, 64], gl.float32, LAST)
    for part in gl.static_range(WIDTH // 64):
        values = queries.index(0).slice(64 * part, 64, dim=1).load(LAST).to(gl.float32)
        squares += values * values
    states.index(FACTORS).store(log2_scale * gl.rsqrt(gl.sum(squares, 1) / WIDTH + eps))


@gluon.jit
def turn_query(shared, cos, sin, phase):
    """Rotate the last 64 values of every head in place once they have arrived, and store cos and
    sin [32] for the epilogue."""
    queries, _, _, _, _, turns, barriers = shared
    turns.index(0).store(cos)
    turns.index(1).store(sin)
    mbarrier.wait(barriers.index(QUERY_THERE), phase)
    last = queries.index(0).slice(WIDTH - 64, 64, dim=1)
    even, odd = gl.split(gl.reshape(last.load(LAST).to(gl.float32), (HEADS, 32, 2)))
    COLUMN: gl.constexpr = gl.SliceLayout(0, even.type.layout)
    cos = gl.convert_layout(cos, COLUMN, assert_trivial=True)[None, :]
    sin = gl.convert_layout(sin, COLUMN, assert_trivial=True)[None, :]
    turned = gl.join(even * cos - odd * sin, even * sin + odd * cos)
    turned = gl.reshape(turned, (HEADS, 64)).to(gl.bfloat16)
    last.store(gl.convert_layout(turned, LAST, assert_trivial=True))
    fence_async_shared()
