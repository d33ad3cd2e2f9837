"""The query of an item in the Hopper attention kernel: copied to shared memory and turned there."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from deepinfer.kernels.gluon_names import async_load

from .gluon_work import HEADS, WIDTH

# The last 64 values of a head, as such and as pairs.
LAST = gl.constexpr(gl.BlockedLayout([1, 8], [8, 4], [4, 1], [1, 0]))
LAST_PAIRS = gl.constexpr(gl.BlockedLayout([1, 4], [8, 4], [4, 1], [1, 0]))


@gluon.jit
def copy_query(q_ptr, query, queries):
    """Starts to copy a query's 64 heads x 512 bf16; a group of copies ends here."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    head = gl.arange(0, HEADS, gl.SliceLayout(1, LAYOUT))
    column = gl.arange(0, WIDTH, gl.SliceLayout(0, LAYOUT))
    source = q_ptr + query.to(gl.int64) * (HEADS * WIDTH) + head[:, None] * WIDTH + column[None, :]
    async_load(queries.index(0), source)
    async_copy.commit_group()


@gluon.jit
def rotation(cos_ptr, sin_ptr, query, ROTARY: gl.constexpr, LAYOUT: gl.constexpr, is_wanted):
    """Cosine and sine of the last 32 pairs, of which the last ROTARY turn."""
    turning = gl.arange(0, 32, LAYOUT) - (32 - ROTARY)
    place = 2 * (query * ROTARY + turning)
    is_turning = (turning >= 0) & is_wanted
    cos = gl.load(cos_ptr + place, mask=is_turning, other=1.0)
    sin = gl.load(sin_ptr + place + 1, mask=is_turning, other=0.0)
    return cos, sin


@gluon.jit
def turn_query(queries, cos, sin, turns, parity):
    """Rotates the last 64 values of every head where they lie, and leaves cos and sin [32] there
    for those who turn the output back."""
    turns.index(2 * parity).store(cos)
    turns.index(2 * parity + 1).store(sin)
    last = queries.index(0).slice(WIDTH - 64, 64, dim=1)
    even, odd = gl.split(gl.reshape(last.load(LAST).to(gl.float32), (HEADS, 32, 2)))
    COLUMN: gl.constexpr = gl.SliceLayout(0, even.type.layout)
    cos = gl.convert_layout(cos, COLUMN, assert_trivial=True)[None, :]
    sin = gl.convert_layout(sin, COLUMN, assert_trivial=True)[None, :]
    turned = gl.join(even * cos - odd * sin, even * sin + odd * cos)
    turned = gl.reshape(turned, (HEADS, 64)).to(gl.bfloat16)
    last.store(gl.convert_layout(turned, LAST, assert_trivial=True))
