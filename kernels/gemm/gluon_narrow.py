"""GEMM with an E4M3 or E2M1 weight for few rows on NVIDIA SM90, in Gluon.

The weight is the left operand (M of the MMA), so that few rows of activations do not waste the
tensor cores, and FP4 is decoded to E4M3 in the registers of that operand.  Many small programs
share an SM and hide each other's latency; each has a pipeline of stages of 256 along K.
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
from .gluon_pipeline import first_input
from .gluon_results import home_of


# Sizes that depend on the batch must not cause recompilation.
@gluon.jit(do_not_specialize=["num_rows", "gate_stride", "most_tokens"])
def narrow_kernel(
    x, x_scales, w, exponents, out, w_scales, tile_expert, row_pair, values, scales, weights,
    counters, homes, num_rows, N, K, gate_stride, limit, most_tokens,
    FORMAT: gl.constexpr, TOKENS: gl.constexpr, STAGES: gl.constexpr, GROUPED: gl.constexpr,
    PAGED: gl.constexpr, GATE: gl.constexpr, TOP_K: gl.constexpr, GROUP_COLUMNS: gl.constexpr,
    EVICT_FIRST: gl.constexpr,
):  # fmt: skip
    """x [R, K] e4m3, w [E N, K] e4m3 (FORMAT 1) or [E N, K / 8] i32 of eight E2M1 (FORMAT 2); out
    [R, N] bf16.

    GROUPED: grouped GEMM, ``tile_expert`` is the expert of each row tile, negative if unused.
    PAGED: it also has the position of the tile's rows, see ``ExpertRows``.
    GATE, unless it is UNGATED: SwiGLU and quantization, see ``activate_last``.
    TOP_K, unless it is 0: results are stored where their tokens came from, see ``home_of``.
    GROUP_COLUMNS, unless it is 0: grouped linear layer, group g of so many columns uses inputs g K
    to (g + 1) K of x [R, G K].
    EVICT_FIRST: L2 hint for loads of w, see ``gluon_once.py``.
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
            x, x_scales, w, exponents, out, w_scales, expert * N, row_tile, column, num_rows,
            N, K, (row_pair, homes, most_tokens), FORMAT, TOKENS, STAGES, TOP_K, GROUP_COLUMNS,
            EVICT_FIRST,
        )  # fmt: skip
        if GATE != UNGATED:
            if PAGED and TOKENS > 16:  # reloaded, so that it occupies no register in the main loop
                row_tile = gl.load(tile_expert + gl.program_id(1)) >> 16
            gate = (values, scales, gate_stride, weights, counters, limit)
            activate_last(out, gate, row_pair, row_tile, column, num_rows, N, TOKENS, GROUPED, GATE)


@gluon.jit
def _tile(
    x, x_scales, w, exponents, out, w_scales, w_base, row_tile, column, num_rows, N, K,
    home, FORMAT: gl.constexpr, TOKENS: gl.constexpr, STAGES: gl.constexpr, TOP_K: gl.constexpr,
    GROUP_COLUMNS: gl.constexpr, EVICT_FIRST: gl.constexpr,
):  # fmt: skip
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TOKENS, 32])
    x_tiles = gl.allocate_shared_memory(gl.float8e4nv, [STAGES, TOKENS, 256], x.layout)
    s_tiles = gl.allocate_shared_memory(gl.float32, [STAGES, 2, TOKENS], x_scales.layout)
    if FORMAT == 1:
        w_tiles = gl.allocate_shared_memory(gl.float8e4nv, [STAGES, 64, 256], w.layout)
        d_tiles = w_tiles
    else:
        w_tiles = gl.allocate_shared_memory(gl.int32, [STAGES, 64, 32], w.layout)
        d_tiles = gl.allocate_shared_memory(gl.int32, [STAGES, 128], exponents.layout)
    bars = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(bars.index(stage), count=1)
    fence_async_shared()
    pipeline = (x_tiles, s_tiles, w_tiles, d_tiles, bars)
    x_column = first_input(column, K, GROUP_COLUMNS)
    source = (x, x_scales, w, exponents, w_base + column, row_tile * TOKENS, x_column, K)
    for step in gl.static_range(STAGES):
        _load_stage(pipeline, source, step, step, FORMAT, TOKENS, EVICT_FIRST)
    row = gl.arange(0, 64, gl.SliceLayout(1, layout))
    if FORMAT == 2:
        row = (row & 56) | ((row & 1) << 2) | ((row >> 1) & 3)
    # Loaded before the main loop, which hides the latency.
    w_scale = gl.load(w_scales + w_base + column + row, mask=column + row < N, other=0.0)
    acc = gl.zeros([64, TOKENS], gl.float32, layout)
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
        if TOKENS < 64:  # for larger tiles two results at once would lower the occupancy
            next_part = warpgroup_mma(last, last_rows, zero, use_acc=False, is_async=True)
            acc += part * scales[None, :]
        else:
            acc += part * scales[None, :]
            next_part = warpgroup_mma(last, last_rows, zero, use_acc=False, is_async=True)
        next_part = warpgroup_mma_wait(0, [next_part])
        scales = _scales(s_tiles.index(stage), 1, TOKENS, layout)
        thread_barrier()
        _load_stage(pipeline, source, step + STAGES, stage, FORMAT, TOKENS, EVICT_FIRST)
        acc += next_part * scales[None, :]
        stage += 1
        wrapped = stage == STAGES
        phase = gl.where(wrapped, phase ^ 1, phase)
        stage = gl.where(wrapped, 0, stage)
    acc *= w_scale[:, None]
    if FORMAT == 2:
        acc = in_memory_order(acc)
    stored: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    result = gl.convert_layout(acc.to(gl.bfloat16).permute((1, 0)), stored)
    r = row_tile * TOKENS + gl.arange(0, TOKENS, gl.SliceLayout(1, stored))
    n = column + gl.arange(0, 64, gl.SliceLayout(0, stored))
    inside = r < num_rows
    place = out + r.to(gl.int64) * N
    if TOP_K != 0:
        inside, place = home_of(home, r, inside, N, TOP_K)
    inside = inside[:, None] & (n < N)[None, :]
    gl.store(place[:, None] + n[None, :], result, mask=inside)


@gluon.jit
def _load_stage(
    pipeline, source, step, stage,
    FORMAT: gl.constexpr, TOKENS: gl.constexpr, EVICT_FIRST: gl.constexpr,
):  # fmt: skip
    """Issue the loads of k-step ``step`` (256 of K), unless it is beyond K."""
    x_tiles, s_tiles, w_tiles, d_tiles, bars = pipeline
    x, x_scales, w, exponents, w_row, x_row, x_column, K = source
    inside = step * 256 < K
    bar = bars.index(stage)
    W_BYTES: gl.constexpr = 64 * 256 if FORMAT == 1 else 64 * 128 + 512
    WORDS: gl.constexpr = 256 if FORMAT == 1 else 32
    mbarrier.expect(bar, TOKENS * (256 + 8) + W_BYTES, pred=inside)
    load_tile_once(w, [w_row, step * WORDS], bar, w_tiles.index(stage), inside, EVICT_FIRST)
    if FORMAT == 2:
        place = ((w_row // 64) * (K // 256) + step) * 128
        load_tile_once(exponents, [place], bar, d_tiles.index(stage), inside, EVICT_FIRST)
    load_tile(x, [x_row, x_column + step * 256], bar, x_tiles.index(stage), inside)
    load_tile(x_scales, [x_column // 128 + step * 2, x_row], bar, s_tiles.index(stage), inside)


@gluon.jit
def _scales(tile, HALF: gl.constexpr, TOKENS: gl.constexpr, layout: gl.constexpr):
    """Activation scales, those of the accumulator's columns, for one half of a stage."""
    scales = tile.slice(HALF, 1).load(_scale_layout(TOKENS)).reshape([TOKENS])
    return gl.convert_layout(scales, gl.SliceLayout(0, layout), assert_trivial=True)


@gluon.constexpr_function
def _scale_layout(tokens):
    """[1, tokens]: each thread has the scales of its own accumulator columns."""
    return gl.DistributedLinearLayout(
        [[0, 1]] + [[0, 8 << bit] for bit in range((tokens // 8).bit_length() - 1)],
        [[0, 2], [0, 4], [0, 0], [0, 0], [0, 0]],
        [[0, 0], [0, 0]],
        [],
        [1, tokens],
    )


@gluon.jit
def _operand(words, exponents, HALF: gl.constexpr, FORMAT: gl.constexpr, layout: gl.constexpr):
    """The [64, 128] e4m3 left operand: in shared memory, or decoded from FP4 to registers with rows
    in thread order."""
    if FORMAT == 1:
        operand = words.slice(HALF * 128, 128, 1)
    else:
        codes = words.slice(HALF * 16, 16, 1).load(code_layout(64))
        word = exponents.load(gl.BlockedLayout([1], [32], [4], [0]))
        operand = decoded_operand(in_thread_order(codes), word >> (HALF * 16), layout)
    return operand
