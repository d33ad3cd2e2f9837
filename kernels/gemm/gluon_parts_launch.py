"""Launches of ``gluon_parts.py``: bf16 weights of few rows on NVIDIA SM90."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.kernels.launch import cdiv, multiprocessors
from deepinfer.kernels.relaunch import launch

from .gluon_parts import INPUTS, NARROW, ROWS, WIDE, parts_kernel
from .gluon_tiles import described_tiles
from .triton_kernel import check_operands
from .weights import Weight

_STAGES = 5
_MANY = 1280  # fewer rows leave too many multiprocessors without a tile


def fits_parts(x: Tensor, weight: Weight, parts: int) -> bool:
    """Whether ``fp32_linear_parts_gluon`` takes these, and is faster; bits are the same."""
    values = weight.values
    return (
        len(x) >= _MANY
        and x.dtype == values.dtype == torch.bfloat16
        and values.shape[1] % (INPUTS.value * parts) == 0
    )


def fp32_linear_parts_gluon(x: Tensor, weight: Weight, parts: int) -> Tensor:
    """As ``fp32_linear_parts``."""
    values = weight.values
    check_operands(x, weight, values, float32=True)
    rows, (n, k) = len(x), values.shape
    out = torch.empty(parts, rows, n, dtype=torch.float32, device=x.device)
    tiles = cdiv(rows, ROWS.value) * parts * cdiv(n, WIDE.value + NARROW.value)
    launch(parts_kernel, (min(tiles, multiprocessors(x.device)),))(
        described_tiles(x.contiguous(), ROWS.value, INPUTS.value),
        described_tiles(values, WIDE.value, INPUTS.value),
        described_tiles(values, NARROW.value, INPUTS.value),
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
