"""Sum of the experts' outputs before the expansion over the streams."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.kernels.launch import cdiv
from deepinfer.kernels.moe.pair_outputs import PairOutputs
from deepinfer.kernels.quant.triton_bits import bf16_bits, bf16_value
from deepinfer.kernels.relaunch import launch

_COLUMNS = 1024


def added_up(output: Tensor | PairOutputs) -> Tensor:
    """The sub-block's output [T, d] bf16; ``PairOutputs`` are summed."""
    if isinstance(output, Tensor):
        return output
    tokens, width = output.added.shape
    total = torch.empty_like(output.added)
    if tokens:
        launch(add_pairs_kernel, (tokens, cdiv(width, _COLUMNS)))(
            output.added.view(torch.int16), output.rows.view(torch.int16), output.row,
            total.view(torch.int16), width, PER_TOKEN=output.per_token, TILE_D=_COLUMNS,
            num_warps=4, enable_fp_fusion=True,
        )  # fmt: skip
    return total


@triton.jit
def add_pairs_kernel(
    added_ptr, rows_ptr, row_ptr, total_ptr, width, PER_TOKEN: tl.constexpr, TILE_D: tl.constexpr
):
    """A token's rows, summed in their order (-1: none), plus ``added``."""
    token = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * TILE_D + tl.arange(0, TILE_D)
    inside = place < width
    total = tl.zeros([TILE_D], tl.float32)
    for choice in tl.static_range(PER_TOKEN):
        row = tl.load(row_ptr + token * PER_TOKEN + choice).to(tl.int64)
        present = place < tl.where(row >= 0, width, 0)
        total += bf16_value(tl.load(rows_ptr + row * width + place, mask=present, other=0))
    added = bf16_value(tl.load(added_ptr + token * width + place, mask=inside, other=0))
    bits = bf16_bits(added + total).to(tl.int16)
    tl.store(total_ptr + token * width + place, bits, mask=inside)
