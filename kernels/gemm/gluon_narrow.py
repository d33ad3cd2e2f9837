"""The product with E4M3 or E2M1 weights for few rows on NVIDIA SM90, in Gluon.

The weight is the left operand, so that a few rows of activations do not waste the matrix unit and
FP4 codes become E4M3 in the registers from which it reads.  Many small programs share a
multiprocessor and hide each other's waits; each has a ring of 256 inputs a stage.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from deepinfer.kernels.gluon_names import load_tile, thread_barrier
from deepinfer.kernels.gluon_once import load_tile_once

from .gluon_decode import code_layout, decoded_operand, in_memory_order, in_thread_order
from .gluon_gated import UNGATED
from .gluon_last import activate_last
from .gluon_results import home_of
from .gluon_ring import first_input


# Sizes that follow the batch must not make new variants of the kernel.
@gluon.jit(do_not_specialize=["num_rows", "gate_stride", "most_tokens"])
def narrow_kernel(
    x, x_scales, w, steps, out, w_scales, tile_expert, row_pair, values, scales, weights, turns,
    homes, num_rows, N, K, gate_stride, limit, most_tokens,
    FORMAT: gl.constexpr, TOKENS: gl.constexpr, STAGES: gl.constexpr, GROUPED: gl.constexpr,
    PAGED: gl.constexpr, GATE: gl.constexpr, CHOICES: gl.constexpr, GROUP_COLUMNS: gl.constexpr,
    ONCE: gl.constexpr,
):  # fmt: skip
    """x [R, K] e4m3, w [E N, K] e4m3 (FORMAT 1) or [E N, K / 8] i32 of eight codes (FORMAT 2).

    GROUPED: ``tile_expert`` gives the expert of each tile, below 0 if it is not used; PAGED: with
    its rows, see ``ExpertRows``.
    GATE, unless it is UNGATED: see ``activate_last``.
    CHOICES, unless it is 0: rows go where their tokens came from, see ``home_of``.
    GROUP_COLUMNS, unless it is 0: each so many columns meet the next K inputs of x [R, G K].
    ONCE: few programs read the same of w, see ``gluon_once.py``.
    """
    row_tile = gl.program_id(1)
    column = gl.program_id(0) * 64
    owner = 0
    if GROUPED:
        owner = gl.load(tile_expert + row_tile)
    expert = owner
    if PAGED:
        row_tile = owner >> 16
        expert = owner & 0xFFFF
    if owner >= 0:
        _tile(
            x, x_scales, w, steps, out, w_scales, expert * N, row_tile, column, num_rows,
            N, K, (row_pair, homes, most_tokens), FORMAT, TOKENS, STAGES, CHOICES, GROUP_COLUMNS,
            ONCE,
        )  # fmt: skip
        if GATE != UNGATED:
            if PAGED and TOKENS > 16:  # again, so that no register holds it meanwhile
                row_tile = gl.load(tile_expert + gl.program_id(1)) >> 16
            gate = (values, scales, gate_stride, weights, turns, limit)
            activate_last(out, gate, row_pair, row_tile, column, num_rows, N, TOKENS, GROUPED, GATE)


@gluon.jit
def _tile(
    x, x_scales, w, steps, out, w_scales, w_base, row_tile, column, num_rows, N, K,
    home, FORMAT: gl.constexpr, TOKENS: gl.constexpr, STAGES: gl.constexpr, CHOICES: gl.constexpr,
    GROUP_COLUMNS: gl.constexpr, ONCE: gl.constexpr,
):  # fmt: skip
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TOKENS, 32])
    x_tiles = gl.allocate_shared_memory(gl.float8e4nv, [STAGES, TOKENS, 256], x.layout)
    s_tiles = gl.allocate_shared_memory(gl.float32, [STAGES, 2, TOKENS], x_scales.layout)
    if FORMAT == 1:
        w_tiles = gl.allocate_shared_memory(gl.float8e4nv, [STAGES, 64, 256], w.layout)
        d_tiles = w_tiles
    else:
        w_tiles = gl.allocate_shared_memory(gl.int32, [STAGES, 64, 32], w.layout)
        d_tiles = gl.allocate_shared_memory(gl.int32, [STAGES, 128], steps.layout)
    bars = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(bars.index(stage), count=1)
    fence_async_shared()
    ring = (x_tiles, s_tiles, w_tiles, d_tiles, bars)
    x_column = first_input(column, K, GROUP_COLUMNS)
    source = (x, x_scales, w, steps, w_base + column, row_tile * TOKENS, x_column, K)
    for step in gl.static_range(STAGES):
        _fetch(ring, source, step, step, FORMAT, TOKENS, ONCE)
    row = gl.arange(0, 64, gl.SliceLayout(1, layout))
    if FORMAT == 2:
        row = (row & 56) | ((row & 1) << 2) | ((row >> 1) & 3)
    # On its way while products are summed.
    factor = gl.load(w_scales + w_base + column + row, mask=column + row < N, other=0.0)
    sums = gl.zeros([64, TOKENS], gl.float32, layout)
    zero = gl.zeros([64, TOKENS], gl.float32, layout)
    stage = 0
    phase = 0
    for step in range(K // 256):
        mbarrier.wait(bars.index(stage), phase)
        rows = x_tiles.index(stage)
        first = _operand(w_tiles.index(stage), d_tiles.index(stage), 0, FORMAT, layout)
        first_rows = rows.slice(0, 128, 1).permute((1, 0))
        part = warpgroup_mma(first, first_rows, zero, use_acc=False, is_async=True)
        last = _operand(w_tiles.index(stage), d_tiles.index(stage), 1, FORMAT, layout)
        last_rows = rows.slice(128, 128, 1).permute((1, 0))
        part = warpgroup_mma_wait(0, [part])
        scales = _scales(s_tiles.index(stage), 0, TOKENS, layout)
        if TOKENS < 64:  # more registers would leave fewer programs on a multiprocessor
            next_part = warpgroup_mma(last, last_rows, zero, use_acc=False, is_async=True)
            sums += part * scales[None, :]
        else:
            sums += part * scales[None, :]
            next_part = warpgroup_mma(last, last_rows, zero, use_acc=False, is_async=True)
        next_part = warpgroup_mma_wait(0, [next_part])
        scales = _scales(s_tiles.index(stage), 1, TOKENS, layout)
        thread_barrier()
        _fetch(ring, source, step + STAGES, stage, FORMAT, TOKENS, ONCE)
        sums += next_part * scales[None, :]
        stage += 1
        wrapped = stage == STAGES
        phase = gl.where(wrapped, phase ^ 1, phase)
        stage = gl.where(wrapped, 0, stage)
    sums *= factor[:, None]
    if FORMAT == 2:
        sums = in_memory_order(sums)
    stored: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    result = gl.convert_layout(sums.to(gl.bfloat16).permute((1, 0)), stored)
    r = row_tile * TOKENS + gl.arange(0, TOKENS, gl.SliceLayout(1, stored))
    n = column + gl.arange(0, 64, gl.SliceLayout(0, stored))
    inside = r < num_rows
    place = out + r.to(gl.int64) * N
    if CHOICES != 0:
        inside, place = home_of(home, r, inside, N, CHOICES)
    inside = inside[:, None] & (n < N)[None, :]
    gl.store(place[:, None] + n[None, :], result, mask=inside)


@gluon.jit
def _fetch(
    ring, source, step, stage, FORMAT: gl.constexpr, TOKENS: gl.constexpr, ONCE: gl.constexpr
):  # fmt: skip
    """Start copies of inputs 256 ``step`` and on, unless K ends before."""
    x_tiles, s_tiles, w_tiles, d_tiles, bars = ring
    x, x_scales, w, steps, w_row, x_row, x_column, K = source
    inside = step * 256 < K
    bar = bars.index(stage)
    W_BYTES: gl.constexpr = 64 * 256 if FORMAT == 1 else 64 * 128 + 512
    WORDS: gl.constexpr = 256 if FORMAT == 1 else 32
    mbarrier.expect(bar, TOKENS * (256 + 8) + W_BYTES, pred=inside)
    load_tile_once(w, [w_row, step * WORDS], bar, w_tiles.index(stage), inside, ONCE)
    if FORMAT == 2:
        place = ((w_row // 64) * (K // 256) + step) * 128
        load_tile_once(steps, [place], bar, d_tiles.index(stage), inside, ONCE)
    load_tile(x, [x_row, x_column + step * 256], bar, x_tiles.index(stage), inside)
    load_tile(x_scales, [x_column // 128 + step * 2, x_row], bar, s_tiles.index(stage), inside)


@gluon.jit
def _scales(tile, HALF: gl.constexpr, TOKENS: gl.constexpr, layout: gl.constexpr):
    """Scales of the columns of the result, for one half of a stage."""
    scales = tile.slice(HALF, 1).load(_scale_layout(TOKENS)).reshape([TOKENS])
    return gl.convert_layout(scales, gl.SliceLayout(0, layout), assert_trivial=True)


@gluon.constexpr_function
def _scale_layout(tokens):
    """[1, tokens]: as a thread's columns of the result."""
    return gl.DistributedLinearLayout(
        [[0, 1]] + [[0, 8 << bit] for bit in range((tokens // 8).bit_length() - 1)],
        [[0, 2], [0, 4], [0, 0], [0, 0], [0, 0]],
        [[0, 0], [0, 0]],
        [],
        [1, tokens],
    )


@gluon.jit
def _operand(words, steps, HALF: gl.constexpr, FORMAT: gl.constexpr, layout: gl.constexpr):
    """A [64, 128] e4m3 operand, in registers with its rows in thread order if it was FP4."""
    if FORMAT == 1:
        operand = words.slice(HALF * 128, 128, 1)
    else:
        codes = words.slice(HALF * 16, 16, 1).load(code_layout(64))
        word = steps.load(gl.BlockedLayout([1], [32], [4], [0]))
        operand = decoded_operand(in_thread_order(codes), word >> (HALF * 16), layout)
    return operand
