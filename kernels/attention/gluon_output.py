"""The end of an item in the Hopper attention kernel: normalise, turn back, store by TMA."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from deepinfer.kernels.gluon_names import seen_as, store_tile, thread_barrier

from .gluon_rows import halves_of
from .gluon_work import EMPTY, HALF, HEADS, TILE_BF16

LOWEST = gl.constexpr(-1e30)
LOG2_E = gl.constexpr(1.4426950408889634)
SCORE_LAYOUT = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
SUM_LAYOUT = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 256, 16]))


@gluon.jit
def finish(
    sums, highest, total, item, outputs, shared,
    SIDE: gl.constexpr, ROTARY: gl.constexpr, PIECES: gl.constexpr,
):  # fmt: skip
    """Divides by the denominator, turns the last values back, starts to store one half of the
    output from where this half of the last tile lay.

    Of a piece, fp16 values for each key's share of the piece and log2 of its denominator.
    """
    WHOLE: gl.constexpr = PIECES == 1
    TURNS: gl.constexpr = WHOLE and SIDE == 1 and ROTARY > 0
    _, _, _, out, state_ptr, _, sinks = outputs
    _, keys, _, _, _, turns, _ = shared
    if WHOLE:
        log2_sink = sinks.index(SIDE).load(gl.SliceLayout(1, SCORE_LAYOUT))
        factor = gl.where(total > 0.0, 1.0 / (total + gl.exp2(log2_sink - highest)), 0.0)
    else:
        factor = gl.where(total > 0.0, 1.0 / total, 0.0)
        if SIDE == 0:
            head = gl.arange(0, HEADS, gl.SliceLayout(1, SCORE_LAYOUT))
            logarithm = gl.where(total > 0.0, highest + gl.log2(total), LOWEST)
            gl.store(state_ptr + item * HEADS + head, logarithm)
    place = seen_as(keys, out.dtype, [4, HEADS, HALF], TILE_BF16).index(2 + SIDE)
    thread_barrier()  # all warps are done with what was there
    if TURNS:
        left, right = halves_of(sums)
        third, last = halves_of(right)
        place.slice(0, 128, dim=1).store(_scaled(left, factor, WHOLE))
        place.slice(128, 64, dim=1).store(_scaled(third, factor, WHOLE))
        place.slice(192, 64, dim=1).store(_turned_back(_scaled(last, factor, WHOLE), turns))
    else:
        place.store(_scaled(sums, factor, WHOLE))
    fence_async_shared()
    store_tile(out, [item * HEADS, SIDE * HALF], place)


@gluon.jit
def await_store(barriers, is_stored, SIDE: gl.constexpr, PIECE_TILES: gl.constexpr):
    """Waits until results have left their place, and gives it back if an item was ``is_stored``.

    A multiprocessor takes some 2,600 cycles to send the 64 KiB of an item.
    """
    tma.store_wait(0)
    if PIECE_TILES > 1:
        mbarrier.arrive(barriers.index(EMPTY + 2 + SIDE), count=1, pred=is_stored)


@gluon.jit
def _scaled(values, factor, WHOLE: gl.constexpr):
    COLUMN: gl.constexpr = gl.SliceLayout(1, values.type.layout)
    values = values * gl.convert_layout(factor, COLUMN, assert_trivial=True)[:, None]
    if WHOLE:
        return values.to(gl.bfloat16)
    else:  # noqa: RET505 - both are compiled otherwise
        return gl.minimum(gl.maximum(values, -65504.0), 65504.0).to(gl.float16)


@gluon.jit
def _turned_back(values, turns):
    """64 heads x 64 bf16, rotated back by cosine and sine, which lie in ``turns``."""
    even, odd = gl.split(gl.reshape(values.to(gl.float32), (HEADS, 32, 2)))
    PAIR: gl.constexpr = gl.SliceLayout(0, even.type.layout)
    cos, sin = turns.index(0).load(PAIR)[None, :], turns.index(1).load(PAIR)[None, :]
    turned = gl.join(even * cos + odd * sin, odd * cos - even * sin)
    return gl.reshape(turned, (HEADS, 64)).to(gl.bfloat16)
