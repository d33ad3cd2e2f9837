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


@gluon.jit
def finish(
    sums, highest, total, item, outputs,
    SIDE: gl.constexpr, ROTARY: gl.constexpr, PIECES: gl.constexpr,
):  # fmt: skip
    """Divides by the denominator, turns the last values back, stores one half of the output.

    Of a piece, fp16 values for each key's share of the piece and log2 of its denominator.
    """
    WHOLE: gl.constexpr = PIECES == 1
    sink_ptr, cos_ptr, sin_ptr, out_ptr, state_ptr, _ = outputs
    head = gl.arange(0, HEADS, gl.SliceLayout(1, SCORE_LAYOUT))
    if WHOLE:
        sink = gl.load(sink_ptr + head) * LOG2_E
        factor = gl.where(total > 0.0, 1.0 / (total + gl.exp2(sink - highest)), 0.0)
    else:
        factor = gl.where(total > 0.0, 1.0 / total, 0.0)
        if SIDE == 0:
            logarithm = gl.where(total > 0.0, highest + gl.log2(total), LOWEST)
            gl.store(state_ptr + item * HEADS + head, logarithm)
    factor = gl.convert_layout(factor, gl.SliceLayout(1, SUM_LAYOUT), assert_trivial=True)
    sums = sums * factor[:, None]
    left, right = halves_of(sums)
    first, second = halves_of(left)
    third, fourth = halves_of(right)
    base = out_ptr + item.to(gl.int64) * (HEADS * WIDTH) + SIDE * HALF
    query = item // PIECES
    _store(first, base, cos_ptr, sin_ptr, query, 0, WHOLE)
    _store(second, base + 64, cos_ptr, sin_ptr, query, 0, WHOLE)
    _store(third, base + 128, cos_ptr, sin_ptr, query, 0, WHOLE)
    _store(fourth, base + 192, cos_ptr, sin_ptr, query, ROTARY if SIDE == 1 else 0, WHOLE)


@gluon.jit
def _store(values, base, cos_ptr, sin_ptr, query, ROTARY: gl.constexpr, WHOLE: gl.constexpr):
    """64 heads x 64 values; the last 2 ROTARY of them are turned back."""
    if not WHOLE:
        values = gl.minimum(gl.maximum(values, -65504.0), 65504.0).to(gl.float16)
    else:
        values = values.to(gl.bfloat16)
        if ROTARY > 0:
            even, odd = gl.split(gl.reshape(values.to(gl.float32), (HEADS, 32, 2)))
            cos, sin = rotation(
                cos_ptr, sin_ptr, query, ROTARY, gl.SliceLayout(0, even.type.layout), True
            )
            turned = gl.join(
                even * cos[None, :] + odd * sin[None, :], odd * cos[None, :] - even * sin[None, :]
            )
            values = gl.reshape(turned, (HEADS, 64)).to(gl.bfloat16)
    ROWS: gl.constexpr = gl.BlockedLayout([1, 8], [8, 4], [4, 1], [1, 0])
    values = gl.convert_layout(values, ROWS)
    head = gl.arange(0, HEADS, gl.SliceLayout(1, ROWS))
    column = gl.arange(0, 64, gl.SliceLayout(0, ROWS))
    gl.store(base + head[:, None] * WIDTH + column[None, :], values)


@gluon.jit
def rotation(cos_ptr, sin_ptr, query, ROTARY: gl.constexpr, LAYOUT: gl.constexpr, is_wanted):
    """Cosine and sine of the last 32 pairs, of which the last ROTARY turn."""
    turning = gl.arange(0, 32, LAYOUT) - (32 - ROTARY)
    place = 2 * (query * ROTARY + turning)
    is_turning = (turning >= 0) & is_wanted
    cos = gl.load(cos_ptr + place, mask=is_turning, other=1.0)
    sin = gl.load(sin_ptr + place + 1, mask=is_turning, other=0.0)
    return cos, sin
