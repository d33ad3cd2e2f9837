"""Launcher of ``gluon_parts.py``: split-K GEMM for bf16 weights of few rows on NVIDIA SM90."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.kernels.launch import cdiv, check_tensor, multiprocessors
from deepinfer.kernels.relaunch import launch

from .checks import check_operands
from .gluon_parts import INPUTS, parts_kernel
from .gluon_tiles import described_tiles
from .parts_tiles import PartsTile, parts_tile
from .weights import Weight


def fits_parts(x: Tensor, weight: Weight, parts: int) -> bool:
    """Whether ``fp32_linear_parts_gluon`` supports these; it has the bits of the Triton kernel."""
    values = weight.values
    return (
        x.dim() == values.dim() == 2
        and len(x) > 0
        and x.dtype == values.dtype == torch.bfloat16
        and values.shape[0] % 64 == 0
        and values.shape[1] % (INPUTS.value * parts) == 0
    )


def fp32_linear_parts_gluon(
    x: Tensor,
    weight: Weight,
    parts: int,
    form: tuple[PartsTile, int] | None = None,
    *,
    preset: tuple[Tensor, int] | None = None,
) -> Tensor:
    """As ``fp32_linear_parts``; ``form`` is the fastest unless given."""
    values = weight.values
    check_operands(x, weight, values, float32=True)
    rows, (n, k) = len(x), values.shape
    at_once = multiprocessors(x.device)
    tile, added = form or parts_tile(rows, n, k, parts, at_once)
    out = torch.empty(rows, parts // added, n, dtype=torch.float32, device=x.device)
    numbers, value = (out, 0) if preset is None else preset
    if preset is not None:
        check_tensor("preset", numbers, torch.int32, (None,), x)
    tiles = cdiv(rows, tile.rows) * cdiv(n, 64 * tile.subtiles) * (parts // added)
    launch(parts_kernel, (min(tiles, at_once),))(
        described_tiles(x.contiguous(), tile.rows, INPUTS.value),
        described_tiles(values, 64, INPUTS.value),
        described_tiles(out.view(rows, -1), tile.out_rows, 64),
        numbers,
        0 if preset is None else len(numbers),
        value,
        rows,
        n,
        k // parts,
        PARTS=parts // added,
        ADDED=added,
        SUBTILES=tile.subtiles,
        STAGES=tile.stages,
        num_warps=4,
        enable_fp_fusion=True,
    )
    return out
