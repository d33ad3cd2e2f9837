"""Sparse latent attention for Hopper in Gluon (Triton's lower-level language).

One block of threads works on one query (64 heads x 512 values) and a run of its key tiles.  Three
groups of warps share it:

* the producer gathers packed rows, makes bf16 of them and fills two tiles of 64 keys, or copies
  rows that are bf16 already;
* the left consumer computes the scores of even tiles, the right one those of odd tiles;
* each consumer sums its half of the 256 + 256 output values over all tiles.  It hands its weights,
  their sums and the running maximum to the other one through shared memory.

So Q is read once per tile.  The left and right values of a tile are filled and emptied apart.
Queries come by TMA, and results leave by TMA from where the last tile lay, while the next item's
first tile is worked on.
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


# Sizes that follow the batch must not make new variants of the kernel.
@gluon.jit(do_not_specialize=["num_queries", "scale_stride"])
def attention_gluon_kernel(
    q, window_ptr, window_index_ptr, main_ptr, main_index_ptr, sink_ptr, cos_ptr, sin_ptr,
    out, state_ptr, log2_scale, num_queries, scale_stride, lse_ptr, q_norm_eps,
    PIECES: gl.constexpr, PIECE_TILES: gl.constexpr, WINDOW_LENGTH: gl.constexpr,
    MAIN_LENGTH: gl.constexpr, ROTARY: gl.constexpr, COPIES: gl.constexpr,
):  # fmt: skip
    """To ``out`` [T 64, 512] bf16; or pairs of E4M3 [T 64, 256] i16, with scales of 128 values
    [64 * 4, scale_stride] f32 in ``state_ptr``; or, of more than one piece, fp16 values of each,
    with logarithms of their denominators [T PIECES, 64] f32 in ``state_ptr``.
    Logarithms of sums of keys to ``lse_ptr`` [T, 64] f32 if it is not None, with one piece.
    Unless ``q_norm_eps`` is None queries count as scaled to unit root mean square."""
    if PIECES > 1:
        # The kernel that adds the pieces may be launched now; it waits for what this one writes.
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
        # Each thread that copied arrives by itself; the first half has nothing else.
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
        # The 88 that are left for the producer hold a unit and what it is decoded with.
        [208, 208],
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
