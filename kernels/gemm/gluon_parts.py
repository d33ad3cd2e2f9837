"""Products of bf16 rows with a weight of few rows on NVIDIA SM90, for parts of K by themselves.

A persistent kernel in Gluon: one warp fetches tiles, 64 inputs at a time; two groups of four warps
multiply 64 rows by 192 columns each.  The matrix unit adds the inputs of a part in ascending order
in fp32: the same chain as in ``triton_kernel.py``, and so the same bits.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from deepinfer.kernels.gluon_names import load_tile
from deepinfer.kernels.launch import multiprocessors

from .gluon_ring import barriers, wait_empty
from .gluon_tiles import described_tiles
from .triton_kernel import check_operands
from .weights import Weight

_ROWS = gl.constexpr(128)
_INPUTS = gl.constexpr(64)
# 192 columns as two powers of two.
_WIDE = gl.constexpr(128)
_NARROW = gl.constexpr(64)
_STAGES = 5
_MANY = 1280  # fewer rows leave too many multiprocessors without a tile


def fits_parts(x: Tensor, weight: Weight, parts: int) -> bool:
    """Whether ``fp32_linear_parts_gluon`` takes these, and is faster; bits are the same."""
    values = weight.values
    return (
        len(x) >= _MANY
        and x.dtype == values.dtype == torch.bfloat16
        and values.shape[1] % (_INPUTS.value * parts) == 0
    )


def fp32_linear_parts_gluon(x: Tensor, weight: Weight, parts: int) -> Tensor:
    """As ``fp32_linear_parts``."""
    values = weight.values
    check_operands(x, weight, values, float32=True)
    rows, (n, k) = len(x), values.shape
    out = torch.empty(parts, rows, n, dtype=torch.float32, device=x.device)
    tiles = triton.cdiv(rows, _ROWS.value) * parts * triton.cdiv(n, _WIDE.value + _NARROW.value)
    parts_kernel[(min(tiles, multiprocessors(x.device)),)](
        described_tiles(x.contiguous(), _ROWS.value, _INPUTS.value),
        described_tiles(values, _WIDE.value, _INPUTS.value),
        described_tiles(values, _NARROW.value, _INPUTS.value),
        out,
        rows,
        n,
        k // parts,
        PARTS=parts,
        STAGES=_STAGES,
        num_warps=4,
        enable_fp_fusion=True,
    )
    return out


# Sizes that follow the batch must not make new variants of the kernel.
@gluon.jit(do_not_specialize=["num_rows"])
def parts_kernel(
    x, wide_w, narrow_w, out, num_rows, N, K, PARTS: gl.constexpr, STAGES: gl.constexpr
):
    """x [R, PARTS K] bf16 times each K of w [N, PARTS K] bf16, to out [PARTS, R, N] f32."""
    x_tiles = gl.allocate_shared_memory(gl.bfloat16, [STAGES, _ROWS, _INPUTS], x.layout)
    wide_tiles = gl.allocate_shared_memory(gl.bfloat16, [STAGES, _WIDE, _INPUTS], wide_w.layout)
    narrow_tiles = gl.allocate_shared_memory(
        gl.bfloat16, [STAGES, _NARROW, _INPUTS], narrow_w.layout
    )
    full, empty = barriers(STAGES, 1, 2)
    fence_async_shared()
    tiles = (x_tiles, wide_tiles, narrow_tiles, full, empty)
    gl.warp_specialize(
        [
            (_multiply_first, (tiles, out, num_rows, N, K, PARTS)),
            (_multiply_second, (tiles, out, num_rows, N, K, PARTS)),
            (_fetch, (x, wide_w, narrow_w, tiles, num_rows, N, K, PARTS)),
        ],
        [4, 1],
        [216, 24],
    )


@gluon.jit
def _place(tile, N, PARTS: gl.constexpr):
    """(row, part, column): programs that run together share rows."""
    columns = gl.cdiv(N, _WIDE + _NARROW)
    rest = tile // columns
    return rest // PARTS * _ROWS, rest % PARTS, tile % columns * (_WIDE + _NARROW)


@gluon.jit
def _num_tiles(num_rows, N, PARTS: gl.constexpr):
    return gl.cdiv(num_rows, _ROWS) * PARTS * gl.cdiv(N, _WIDE + _NARROW)


@gluon.jit
def _fetch(x, wide_w, narrow_w, tiles, num_rows, N, K, PARTS: gl.constexpr):
    x_tiles, wide_tiles, narrow_tiles, full, empty = tiles
    STAGES: gl.constexpr = x_tiles.shape[0]
    step = 0
    for tile in range(gl.program_id(0), _num_tiles(num_rows, N, PARTS), gl.num_programs(0)):
        row, part, column = _place(tile, N, PARTS)
        for start in range(part * K, part * K + K, _INPUTS):
            stage = step % STAGES
            bar = full.index(stage)
            wait_empty(empty, step)
            mbarrier.expect(
                bar, x.block_type.nbytes + wide_w.block_type.nbytes + narrow_w.block_type.nbytes
            )
            load_tile(x, [row, start], bar, x_tiles.index(stage))
            load_tile(wide_w, [column, start], bar, wide_tiles.index(stage))
            load_tile(narrow_w, [column + _WIDE, start], bar, narrow_tiles.index(stage))
            step += 1


@gluon.jit
def _multiply_first(tiles, out, num_rows, N, K, PARTS: gl.constexpr):
    _multiply(tiles, out, num_rows, N, K, PARTS, 0)


@gluon.jit
def _multiply_second(tiles, out, num_rows, N, K, PARTS: gl.constexpr):
    _multiply(tiles, out, num_rows, N, K, PARTS, 64)


@gluon.jit
def _multiply(tiles, out, num_rows, N, K, PARTS: gl.constexpr, FIRST: gl.constexpr):
    x_tiles, wide_tiles, narrow_tiles, full, empty = tiles
    STAGES: gl.constexpr = x_tiles.shape[0]
    wide_sums: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, _WIDE, 16])
    narrow_sums: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, _NARROW, 16])
    step = 0
    for tile in range(gl.program_id(0), _num_tiles(num_rows, N, PARTS), gl.num_programs(0)):
        row, part, column = _place(tile, N, PARTS)
        wide = gl.zeros([64, _WIDE], gl.float32, wide_sums)
        narrow = gl.zeros([64, _NARROW], gl.float32, narrow_sums)
        for start in range(0, K, _INPUTS):
            stage = step % STAGES
            mbarrier.wait(full.index(stage), (step // STAGES) & 1)
            rows = x_tiles.index(stage).slice(FIRST, 64)
            columns = wide_tiles.index(stage).permute((1, 0))
            wide = warpgroup_mma(rows, columns, wide, is_async=True)
            columns = narrow_tiles.index(stage).permute((1, 0))
            narrow = warpgroup_mma(rows, columns, narrow, is_async=True)
            wide, narrow = warpgroup_mma_wait(2, [wide, narrow])
            # The products of the stage before are done.
            mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), count=1, pred=start > 0)
            step += 1
        wide, narrow = warpgroup_mma_wait(0, [wide, narrow])
        mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), count=1)
        target = out + part.to(gl.int64) * num_rows * N
        _store(target, wide, row + FIRST, column, num_rows, N)
        _store(target, narrow, row + FIRST, column + _WIDE, num_rows, N)


@gluon.jit
def _store(out, values, row, column, num_rows, N):
    layout: gl.constexpr = values.type.layout
    row += gl.arange(0, values.shape[0], gl.SliceLayout(1, layout))
    column += gl.arange(0, values.shape[1], gl.SliceLayout(0, layout))
    inside = (row < num_rows)[:, None] & (column < N)[None, :]
    gl.store(out + row.to(gl.int64)[:, None] * N + column[None, :], values, mask=inside)
