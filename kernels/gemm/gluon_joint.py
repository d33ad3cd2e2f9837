"""Two products of the same rows in one launch on NVIDIA SM90: gates and ups of an expert, which
leave activated, and the router's, for parts of K by themselves.

The tiles of the first, as in ``gluon_wide.py``, rarely fill their last round of multiprocessors;
those of the second, as in ``gluon_parts.py``, run where nothing is left.  Both go through the same
ring of stages, whose bytes are 128 FP8 or 64 bf16 inputs of a row.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from deepinfer.kernels.gluon_names import seen_as

from .gluon_gated import multiply_gated
from .gluon_parts import INPUTS, fetch_parts, multiply_parts, set_numbers
from .gluon_ring import barriers
from .gluon_wide import fetch_wide

PIECES = gl.constexpr(2)  # of 64 rows of the router's weight, one for each group that multiplies
_NO_TILE = gl.constexpr(1 << 30)


# Sizes that follow the batch must not make new variants of the kernel.
@gluon.jit(
    do_not_specialize=[
        "num_preset", "preset_to", "num_row_tiles", "scale_stride", "out_stride", "num_rows",
    ]
)  # fmt: skip
def joint_kernel(
    x, x_scales, w, out, factors, out_scales, plain_x, plain_w, sums, preset,
    num_preset, preset_to, num_row_tiles, N, K, scale_stride, out_stride, limit, num_rows, M, PART,
    STAGES: gl.constexpr, BAND: gl.constexpr, REGISTERS: gl.constexpr, GATE: gl.constexpr,
    PARTS: gl.constexpr,
):  # fmt: skip
    """x [R, K] e4m3 times w [N, K] e4m3, activated, to pairs of E4M3 [R, N / 4] i16 with
    ``out_scales`` [N / 256, out_stride] f32; plain_x [R, PARTS PART] bf16 times each PART of
    plain_w [M, PARTS PART] bf16 to sums [R, PARTS M] f32.

    Programs that are left without a tile of the first product in its last round share those of the
    second.  ``preset`` [num_preset] i32 is set to ``preset_to``.
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
    full, empty = barriers(STAGES, 1, PIECES)
    fence_async_shared()
    set_numbers(preset, num_preset, preset_to)
    work = (factors, num_row_tiles, N, K)
    gated = (work, (x_tiles, w_tiles, s_tiles, full, empty))
    gated_out = (out, factors, o_tiles, factors, factors)
    gate = (factors, out_scales, out_stride, limit)
    plain_x_tiles = seen_as(x_tiles, gl.bfloat16, [STAGES, ROWS, INPUTS], X_LAYOUT)
    plain_w_tiles = seen_as(w_tiles, gl.bfloat16, [PIECES * STAGES, 64, INPUTS], W_LAYOUT)
    boxes = seen_as(o_tiles, gl.float32, [PIECES, OUT_ROWS, 64], OUT_LAYOUT)
    walk = _walk(num_row_tiles * (N // COLUMNS), K // 128)
    plain = ((num_rows, M, PART), walk, (plain_x_tiles, plain_w_tiles, full, empty))
    sources = ((x, x_scales, w, scale_stride), (plain_x, plain_w))
    results = (gated_out, gate, sums, boxes)
    gl.warp_specialize(
        [
            (_multiply_first, (gated, plain, results, BAND, GATE, PARTS)),
            (_multiply_second, (gated, plain, results, BAND, GATE, PARTS)),
            (_fetch, (sources, gated, plain, BAND, PARTS)),
        ],
        [4, 1],
        [REGISTERS, 24],
    )


@gluon.jit
def _walk(gated_tiles, groups):
    """Over the tiles of the second product: the first one, from one to the next, and the steps of
    the first product before."""
    busy = gated_tiles % gl.num_programs(0)
    begin = gl.program_id(0) - busy
    if begin < 0:
        begin = _NO_TILE
    rounds = gl.cdiv(gated_tiles - gl.program_id(0), gl.num_programs(0))
    return begin, gl.num_programs(0) - busy, rounds * groups


@gluon.jit
def _fetch(sources, gated, plain, BAND: gl.constexpr, PARTS: gl.constexpr):
    work, tiles = gated
    gated_source, plain_source = sources
    x, x_scales, w, scale_stride = gated_source
    fetch_wide(x, x_scales, w, work, tiles, scale_stride, False, BAND, 0, False)
    plain_x, plain_w = plain_source
    sizes, walk, plain_tiles = plain
    fetch_parts(plain_x, plain_w, sizes, walk, plain_tiles, PARTS, 1)


@gluon.jit
def _multiply_first(
    gated, plain, results, BAND: gl.constexpr, GATE: gl.constexpr, PARTS: gl.constexpr
):
    _multiply(gated, plain, results, 0, BAND, GATE, PARTS)


@gluon.jit
def _multiply_second(
    gated, plain, results, BAND: gl.constexpr, GATE: gl.constexpr, PARTS: gl.constexpr
):
    _multiply(gated, plain, results, 1, BAND, GATE, PARTS)


@gluon.jit
def _multiply(
    gated, plain, results,
    HALF: gl.constexpr, BAND: gl.constexpr, GATE: gl.constexpr, PARTS: gl.constexpr,
):  # fmt: skip
    work, tiles = gated
    gated_out, gate, sums, boxes = results
    multiply_gated(work, tiles, gated_out, gate, HALF, False, BAND, GATE)
    sizes, walk, plain_tiles = plain
    multiply_parts(sizes, walk, plain_tiles, sums, boxes, PARTS, 1, HALF)
