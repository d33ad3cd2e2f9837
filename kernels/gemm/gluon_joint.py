"""Two GEMMs on the same rows in one launch on NVIDIA SM90: gate and up projections of an expert
with SwiGLU in the epilogue (``gluon_wide.py``), and the split-K router GEMM (``gluon_parts.py``).

The last wave of the first GEMM rarely fills the device; the tiles of the second run on the SMs that
it leaves idle.  Both use the same pipeline: 128 bytes of a row are 128 FP8 or 64 bf16 values.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from deepinfer.kernels.gluon_names import seen_as

from .gluon_gated import consume_gated
from .gluon_parts import INPUTS, consume_parts, fill, produce_parts
from .gluon_pipeline import barriers
from .gluon_wide import produce_wide

SUBTILES = gl.constexpr(2)  # of 64 rows of the router's weight, one per consumer warpgroup
_NO_TILE = gl.constexpr(1 << 30)


# Sizes that depend on the batch must not cause recompilation.
@gluon.jit(
    do_not_specialize=[
        "num_preset", "preset_to", "num_row_tiles", "scale_stride", "out_stride", "num_rows",
    ]
)  # fmt: skip
def joint_kernel(
    x, x_scales, w, out, w_scales, out_scales, plain_x, plain_w, sums, preset,
    num_preset, preset_to, num_row_tiles, N, K, scale_stride, out_stride, limit, num_rows, M, PART,
    STAGES: gl.constexpr, GROUP_M: gl.constexpr, REGISTERS: gl.constexpr, GATE: gl.constexpr,
    PARTS: gl.constexpr,
):  # fmt: skip
    """First GEMM: x [R, K] e4m3 times w [N, K] e4m3, then SwiGLU; out [R, N / 4] i16 are pairs of
    E4M3, with ``out_scales`` [N / 256, out_stride] f32.  Second GEMM: plain_x [R, PARTS PART] bf16
    times plain_w [M, PARTS PART] bf16, K split into PARTS; partial sums [R, PARTS M] f32.

    Programs without a tile in the last wave of the first GEMM share the tiles of the second.
    ``preset`` [num_preset] i32 is filled with ``preset_to``.
    """
    ROWS: gl.constexpr = x.block_shape[0]
    COLUMNS: gl.constexpr = w.block_shape[0]
    OUT_ROWS: gl.constexpr = sums.block_shape[0]
    X_LAYOUT: gl.constexpr = plain_x.layout
    W_LAYOUT: gl.constexpr = plain_w.layout
    OUT_LAYOUT: gl.constexpr = sums.layout
    x_tiles = gl.allocate_shared_memory(gl.float8e4nv, [STAGES, ROWS, 128], x.layout)
    w_tiles = gl.allocate_shared_memory(gl.float8e4nv, [STAGES, COLUMNS, 128], x.layout)
    s_tiles = gl.allocate_shared_memory(gl.float32, [STAGES, ROWS], x_scales.layout)
    o_tiles = gl.allocate_shared_memory(out.dtype, [2, 64, out.block_shape[1]], out.layout)
    full, empty = barriers(STAGES, 1, SUBTILES)
    fence_async_shared()
    fill(preset, num_preset, preset_to)
    work = (w_scales, num_row_tiles, N, K)
    gated = (work, (x_tiles, w_tiles, s_tiles, full, empty))
    gated_out = (out, w_scales, o_tiles, w_scales, w_scales)
    gate = (w_scales, out_scales, out_stride, limit)
    plain_x_tiles = seen_as(x_tiles, gl.bfloat16, [STAGES, ROWS, INPUTS], X_LAYOUT)
    plain_w_tiles = seen_as(w_tiles, gl.bfloat16, [SUBTILES * STAGES, 64, INPUTS], W_LAYOUT)
    boxes = seen_as(o_tiles, gl.float32, [SUBTILES, OUT_ROWS, 64], OUT_LAYOUT)
    walk = _walk(num_row_tiles * (N // COLUMNS), K // 128)
    plain = ((num_rows, M, PART), walk, (plain_x_tiles, plain_w_tiles, full, empty))
    sources = ((x, x_scales, w, scale_stride), (plain_x, plain_w))
    results = (gated_out, gate, sums, boxes)
    gl.warp_specialize(
        [
            (_consume_first, (gated, plain, results, GROUP_M, GATE, PARTS)),
            (_consume_second, (gated, plain, results, GROUP_M, GATE, PARTS)),
            (_produce, (sources, gated, plain, GROUP_M, PARTS)),
        ],
        [4, 1],
        [REGISTERS, 24],
    )


@gluon.jit
def _walk(gated_tiles, groups):
    """This program's tiles of the second GEMM: (first tile, stride, pipeline steps done before)."""
    busy = gated_tiles % gl.num_programs(0)
    begin = gl.program_id(0) - busy
    if begin < 0:
        begin = _NO_TILE
    rounds = gl.cdiv(gated_tiles - gl.program_id(0), gl.num_programs(0))
    return begin, gl.num_programs(0) - busy, rounds * groups


@gluon.jit
def _produce(sources, gated, plain, GROUP_M: gl.constexpr, PARTS: gl.constexpr):
    work, tiles = gated
    gated_source, plain_source = sources
    x, x_scales, w, scale_stride = gated_source
    produce_wide(x, x_scales, w, work, tiles, scale_stride, False, GROUP_M, False, 0, False)
    plain_x, plain_w = plain_source
    sizes, walk, plain_tiles = plain
    produce_parts(plain_x, plain_w, sizes, walk, plain_tiles, PARTS, 1)


@gluon.jit
def _consume_first(
    gated, plain, results, GROUP_M: gl.constexpr, GATE: gl.constexpr, PARTS: gl.constexpr
):
    _consume(gated, plain, results, 0, GROUP_M, GATE, PARTS)


@gluon.jit
def _consume_second(
    gated, plain, results, GROUP_M: gl.constexpr, GATE: gl.constexpr, PARTS: gl.constexpr
):
    _consume(gated, plain, results, 1, GROUP_M, GATE, PARTS)


@gluon.jit
def _consume(
    gated, plain, results,
    HALF: gl.constexpr, GROUP_M: gl.constexpr, GATE: gl.constexpr, PARTS: gl.constexpr,
):  # fmt: skip
    work, tiles = gated
    gated_out, gate, sums, boxes = results
    consume_gated(work, tiles, gated_out, gate, HALF, False, GROUP_M, GATE)
    sizes, walk, plain_tiles = plain
    consume_parts(sizes, walk, plain_tiles, sums, boxes, PARTS, 1, HALF)
