"""Sparse latent attention for Hopper in Gluon (Triton's lower-level language).

A persistent, warp-specialized kernel.  A work item is one query (64 heads x 512 values) and a run
of its key tiles.  There are three warpgroups:

* the producer gathers packed rows, decodes them to bf16 and fills two buffers of 64 keys, or copies
  rows that are bf16 already;
* the left consumer computes the scores of even tiles, the right one those of odd tiles;
* each consumer accumulates its half of the 512 output columns over all tiles.  It passes P, its row
  sums and the running maximum to the other one through shared memory.

So Q is read once per tile.  The left and right halves of a tile have barriers of their own.
Queries are loaded by TMA, and results are stored by TMA from the buffer of the last tile, which
overlaps with the first tile of the next item.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from triton.language.extra.cuda import gdc_launch_dependents

from .gluon_consumer import consume_left, consume_right
from .gluon_copier import copy_rows
from .gluon_producer import produce
from .gluon_work import BARRIERS, EMPTY, HEADS, QUERY_READ, TILE, TILE_BF16, WIDTH

VECTOR = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))
BARRIER = gl.constexpr(mbarrier.MBarrierLayout())


# Sizes that depend on the batch must not cause recompilation.
@gluon.jit(do_not_specialize=["num_queries", "scale_stride"])
def attention_gluon_kernel(
    q, window_ptr, window_index_ptr, main_ptr, main_index_ptr, sink_ptr, cos_ptr, sin_ptr,
    out, state_ptr, log2_scale, num_queries, scale_stride, lse_ptr, q_norm_eps,
    PIECES: gl.constexpr, PIECE_TILES: gl.constexpr, WINDOW_LENGTH: gl.constexpr,
    MAIN_LENGTH: gl.constexpr, ROTARY: gl.constexpr, COPIES: gl.constexpr,
):  # fmt: skip
    """``out`` is [T 64, 512] bf16; or pairs of E4M3 [T 64, 256] i16, with scales per 128 values
    [64 * 4, scale_stride] f32 in ``state_ptr``; or, with split keys (PIECES > 1), fp16 results of
    each piece, with log2 of their denominators [T PIECES, 64] f32 in ``state_ptr``.
    ``lse_ptr`` [T, 64] f32, unless None, receives the log-sum-exp of keys if PIECES is 1.
    Unless ``q_norm_eps`` is None, queries are normalized to unit root mean square."""
    if PIECES > 1:
        # Programmatic dependent launch of the combine kernel, which waits for this one's results.
        gdc_launch_dependents()
    queries = gl.allocate_shared_memory(gl.bfloat16, [1, HEADS, WIDTH], TILE_BF16)
    keys = gl.allocate_shared_memory(gl.bfloat16, [2, TILE, WIDTH], TILE_BF16)
    weights = gl.allocate_shared_memory(gl.bfloat16, [2, HEADS, TILE], TILE_BF16)
    biases = gl.allocate_shared_memory(gl.bfloat16, [2, TILE], VECTOR)
    NORM: gl.constexpr = q_norm_eps is not None
    states = gl.allocate_shared_memory(gl.float32, [5 if NORM else 4, HEADS], VECTOR)
    sinks = gl.allocate_shared_memory(gl.float32, [2, HEADS], VECTOR)
    turns = gl.allocate_shared_memory(gl.float32, [2, 32], VECTOR)
    barriers = gl.allocate_shared_memory(gl.int64, [BARRIERS, 1], BARRIER)
    for barrier in gl.static_range(BARRIERS):
        # With copies every thread arrives; the first half of a tile has no other arrival.
        mbarrier.init(
            barriers.index(barrier),
            count=(128 if COPIES and barrier < EMPTY else 0)
            + (0 if COPIES and barrier < EMPTY and barrier % 2 == 0 else 1)
            + (1 if barrier == QUERY_READ else 0),
        )
    shared = (queries, keys, weights, biases, states, turns, barriers)
    num_items = num_queries * PIECES
    window_tiles: gl.constexpr = (WINDOW_LENGTH + TILE - 1) // TILE
    total_tiles: gl.constexpr = window_tiles + (MAIN_LENGTH + TILE - 1) // TILE
    sources = (q, window_ptr, window_index_ptr, main_ptr, main_index_ptr)
    outputs = (
        sink_ptr, cos_ptr, sin_ptr, out, state_ptr, log2_scale, sinks, scale_stride, lse_ptr,
        q_norm_eps,
    )  # fmt: skip
    gl.warp_specialize(
        [
            (
                _produce,
                (
                    shared, sources, num_items, PIECES, PIECE_TILES, WINDOW_LENGTH, MAIN_LENGTH,
                    total_tiles, COPIES,
                ),
            ),
            (
                consume_left,
                (shared, outputs, num_items, PIECES, PIECE_TILES, total_tiles, ROTARY, COPIES),
            ),
            (
                consume_right,
                (shared, outputs, num_items, PIECES, PIECE_TILES, total_tiles, ROTARY, COPIES),
            ),
        ],
        [4, 4],
        # The remaining 88 registers suffice for the producer to hold and decode a unit; where it
        # only copies, 72 do.
        [216 if COPIES else 208, 216 if COPIES else 208],
    )  # fmt: skip


@gluon.jit
def _produce(
    shared, sources, num_items, PIECES: gl.constexpr, PIECE_TILES: gl.constexpr,
    WINDOW_LENGTH: gl.constexpr, MAIN_LENGTH: gl.constexpr, TOTAL_TILES: gl.constexpr,
    COPIES: gl.constexpr,
):  # fmt: skip
    if COPIES:
        copy_rows(shared, sources, num_items, WINDOW_LENGTH, MAIN_LENGTH, TOTAL_TILES)
    else:
        produce(shared, sources, num_items, PIECES, PIECE_TILES, WINDOW_LENGTH, MAIN_LENGTH)
