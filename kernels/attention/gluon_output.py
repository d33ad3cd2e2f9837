"""The end of an item in the Hopper attention kernel: normalise, turn back, store."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .gluon_rows import halves_of
from .gluon_work import HALF, HEADS, WIDTH

LOWEST = gl.constexpr(-1e30)
LOG2_E = gl.constexpr(1.4426950408889634)
SCORE_LAYOUT = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
SUM_LAYOUT = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16]))

# [64 heads, 64 values] for stores of 16 bytes.  Rows stay in their warp: no barriers in between.
ROWS = gl.constexpr(
    gl.DistributedLinearLayout(
        reg_bases=[[0, 1], [0, 2], [0, 4], [0, 32], [8, 0]],
        lane_bases=[[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]],
        warp_bases=[[16, 0], [32, 0]],
        block_bases=[],
        shape=[64, 64],
    )
)


@gluon.jit
def finish(
    sums, highest, total, sink, turn, item, outputs,
    SIDE: gl.constexpr, ROTARY: gl.constexpr, PIECES: gl.constexpr,
):  # fmt: skip
    """Divides by the denominator, turns the last values back, stores one half of the output.

    ``sink`` is where log2 of each head's [64] f32 lies, ``turn`` where cosine and sine [32] f32 do.
    Of a piece, fp16 values for each key's share of the piece and log2 of its denominator.
    """
    WHOLE: gl.constexpr = PIECES == 1
    TURNS: gl.constexpr = WHOLE and SIDE == 1 and ROTARY > 0
    _, out_ptr, state_ptr, _, _ = outputs
    left, right = halves_of(sums)
    first, second = halves_of(left)
    third, fourth = halves_of(right)
    if WHOLE:
        log2_sink = sink.load(gl.SliceLayout(1, SCORE_LAYOUT))
        factor = gl.where(total > 0.0, 1.0 / (total + gl.exp2(log2_sink - highest)), 0.0)
    else:
        factor = gl.where(total > 0.0, 1.0 / total, 0.0)
        if SIDE == 0:
            head = gl.arange(0, HEADS, gl.SliceLayout(1, SCORE_LAYOUT))
            logarithm = gl.where(total > 0.0, highest + gl.log2(total), LOWEST)
            gl.store(state_ptr + item * HEADS + head, logarithm)
    base = out_ptr + item.to(gl.int64) * (HEADS * WIDTH) + SIDE * HALF
    _store(_scaled(first, factor, WHOLE), base)
    _store(_scaled(second, factor, WHOLE), base + 64)
    _store(_scaled(third, factor, WHOLE), base + 128)
    last = _scaled(fourth, factor, WHOLE)
    if TURNS:
        last = _turned_back(last, turn)
    _store(last, base + 192)


@gluon.jit
def _scaled(values, factor, WHOLE: gl.constexpr):
    COLUMN: gl.constexpr = gl.SliceLayout(1, values.type.layout)
    values = values * gl.convert_layout(factor, COLUMN, assert_trivial=True)[:, None]
    if WHOLE:
        return values.to(gl.bfloat16)
    else:  # noqa: RET505 - both are compiled otherwise
        return gl.minimum(gl.maximum(values, -65504.0), 65504.0).to(gl.float16)


@gluon.jit
def _turned_back(values, turn):
    """64 heads x 64 bf16, rotated back."""
    even, odd = gl.split(gl.reshape(values.to(gl.float32), (HEADS, 32, 2)))
    PAIR: gl.constexpr = gl.SliceLayout(0, even.type.layout)
    cos, sin = turn[0].load(PAIR)[None, :], turn[1].load(PAIR)[None, :]
    turned = gl.join(even * cos + odd * sin, odd * cos - even * sin)
    return gl.reshape(turned, (HEADS, 64)).to(gl.bfloat16)


@gluon.jit
def _store(values, base):
    """64 heads x 64 values."""
    values = gl.convert_layout(values, ROWS)
    head = gl.arange(0, HEADS, gl.SliceLayout(1, ROWS))
    column = gl.arange(0, 64, gl.SliceLayout(0, ROWS))
    gl.store(base + head[:, None] * WIDTH + column[None, :], values)
