"""Decode packed cache rows to bf16 in Triton, for attention that reads each row many times."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.kernels.launch import cdiv, next_power_of_2
from deepinfer.kernels.quant.triton_bits import bf16_pair
from deepinfer.kernels.quant.triton_rows import main_keys, window_keys
from deepinfer.kernels.relaunch import launch

_TILE_ROWS = 8


def unpack_rows_triton(
    window_rows: Tensor, main_rows: Tensor | None, width: int
) -> tuple[Tensor, Tensor | None]:
    """Packed rows [N, bytes] u8 of ``width`` values -> [N, width] bf16, in one launch.

    Exact, since a packed value times its scale is representable in bf16.  ``width`` is a multiple
    of 64.
    """
    rows = [window_rows] if main_rows is None else [window_rows, main_rows]
    unpacked = [x.new_empty(len(x), width, dtype=torch.bfloat16) for x in rows]
    programs = [cdiv(len(x), _TILE_ROWS) for x in rows]
    if sum(programs):
        launch(unpack_kernel, (sum(programs),))(
            window_rows.view(torch.int16), window_rows, rows[-1], unpacked[0].view(torch.int32),
            unpacked[-1].view(torch.int32), len(window_rows), len(rows[-1]), programs[0],
            HALF=width // 2, TILE_PAIRS=next_power_of_2(width // 2), TILE_ROWS=_TILE_ROWS,
            num_warps=4, enable_fp_fusion=True,
        )  # fmt: skip
    return unpacked[0], None if main_rows is None else unpacked[1]


@triton.jit(do_not_specialize=["num_window", "num_main", "window_programs"])
def unpack_kernel(
    pairs_ptr, window_ptr, main_ptr, window_out_ptr, main_out_ptr, num_window, num_main,
    window_programs, HALF: tl.constexpr, TILE_PAIRS: tl.constexpr, TILE_ROWS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    if program < window_programs:
        row, index = _rows_of(program, num_window, TILE_ROWS)
        even, odd = window_keys(pairs_ptr, window_ptr, index, HALF, TILE_PAIRS, TILE_ROWS)
        _store(window_out_ptr, row, index, even, odd, HALF, TILE_PAIRS)
    else:
        row, index = _rows_of(program - window_programs, num_main, TILE_ROWS)
        even, odd = main_keys(main_ptr, index, HALF, TILE_PAIRS, TILE_ROWS)
        _store(main_out_ptr, row, index, even, odd, HALF, TILE_PAIRS)


@triton.jit
def _rows_of(tile, num_rows, TILE_ROWS: tl.constexpr):
    """Rows of a tile; the same with -1 for those beyond the end."""
    row = tile.to(tl.int64) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    return row, tl.where(row < num_rows, row, -1)


@triton.jit
def _store(out_ptr, row, index, even, odd, HALF: tl.constexpr, TILE_PAIRS: tl.constexpr):
    pair = tl.arange(0, TILE_PAIRS)[None, :]
    is_value = (index >= 0)[:, None] & (pair < HALF)
    tl.store(out_ptr + row[:, None] * HALF + pair, bf16_pair(even, odd), mask=is_value)
