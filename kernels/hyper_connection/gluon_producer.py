"""Producer warp of ``gluon_kernel.py``: loads streams, output and mixing weights by TMA."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from deepinfer.kernels.gemm.gluon_pipeline import wait_empty
from deepinfer.kernels.gluon_names import load_tile

from .gluon_barrier import COUNTER_STRIDE, arrive, wait_for_all

# M of the MMA: the maximum number of tokens per tile.
TOKENS = gl.constexpr(64)
WIDTH = gl.constexpr(32)
STREAMS = gl.constexpr(4)
PARTS = gl.constexpr(3)
ROWS = gl.constexpr(24)
PADDED_ROWS = gl.constexpr(32)
# Steps after an arrival before the producer waits for the other programs.
_STEPS_AHEAD = gl.constexpr(2)


@gluon.jit
def num_tiles(num_tokens, TILE: gl.constexpr):
    """Number of token tiles of this program, which takes every ``num_programs(1)``-th."""
    return gl.cdiv(gl.cdiv(num_tokens, TILE) - gl.program_id(1), gl.num_programs(1))


@gluon.jit
def first_column(step):
    """First column of a step in each stream: the programs of all slices together access contiguous
    memory in a step."""
    return (step * gl.num_programs(0) + gl.program_id(0)) * WIDTH


@gluon.jit
def produce(x, added, fn, memory, counters, num_tokens, D, EXPAND: gl.constexpr):
    """Two tiles at a time, alternating their steps.  After every STEPS of these the programs of all
    slices of the tiles synchronize, so that a program is at most a few steps ahead of the others.
    After a timeout it does not wait any more."""
    x_tiles, o_tiles, w_tiles, full, empty, ready = memory
    STAGES: gl.constexpr = empty.shape[0]
    STEPS: gl.constexpr = w_tiles.shape[0] // (STREAMS * PARTS)
    STEP_BYTES: gl.constexpr = STREAMS * x.block_type.nbytes + EXPAND * added.block_type.nbytes
    TILE: gl.constexpr = x.block_type.shape[0]
    count = num_tiles(num_tokens, TILE)
    counter = counters + gl.program_id(1) * COUNTER_STRIDE
    expected = gl.to_tensor(0).to(gl.int64)
    all_arrived = True
    for pair in range(0, count, 2):
        in_turn = gl.minimum(count - pair, 2)
        for i in range(in_turn * STEPS):
            step = pair * STEPS + i
            stage = step % STAGES
            bar = full.index(step % (2 * STAGES))
            tile = gl.program_id(1) + (pair + i % in_turn) * gl.num_programs(1)
            column = first_column(i // in_turn)
            wait_empty(empty, step)
            if (step > 0) & (i % STEPS == 0):
                expected = arrive(counter, gl.num_programs(0))
            if (step > STEPS) & (i % STEPS == _STEPS_AHEAD) & all_arrived:
                all_arrived = wait_for_all(counter, expected)
            mbarrier.expect(bar, STEP_BYTES)
            for stream in gl.static_range(STREAMS):
                place = [tile * TILE, stream * D + column]
                load_tile(x, place, bar, x_tiles[stream].index(stage).slice(0, TILE))
            if EXPAND:
                load_tile(added, [tile * TILE, column], bar, o_tiles.index(stage).slice(0, TILE))
            # Issued before the streams of the next step, as the first MMA needs them.
            if (pair == 0) & (i % in_turn == 0):
                _load_weights(fn, w_tiles, ready, D, i // in_turn)


@gluon.jit
def _load_weights(fn, w_tiles, ready, D, inner):
    """Load the mixing weights of one step, which stay in shared memory."""
    bar = ready.index(inner)
    mbarrier.expect(bar, STREAMS * PARTS * fn.block_type.nbytes)
    column = first_column(inner)
    for stream in gl.static_range(STREAMS):
        for part in gl.static_range(PARTS):
            tile = w_tiles.index((inner * STREAMS + stream) * PARTS + part)
            load_tile(fn, [part * ROWS, stream * D + column], bar, tile)
