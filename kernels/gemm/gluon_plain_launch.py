"""Launches of ``gluon_plain.py``: bf16 weights for many rows on NVIDIA SM90."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from deepinfer.kernels.launch import multiprocessors

from .gluon_plain import COLUMNS, INPUTS, ROWS, plain_kernel
from .gluon_tiles import described_tiles
from .triton_kernel import check_operands
from .weights import Weight

# Fewer are faster with the weight as left operand, the more so where a group has few columns.
_MANY, _MANY_IN_GROUPS = 96, 256
_OUT_BYTES = 256  # of a row of a tile of the result


def fits_plain(x: Tensor, weight: Weight) -> bool:
    """Whether ``plain_linear_gluon`` takes these; the bits are those of the portable form."""
    values = weight.values
    return (
        len(x) >= (_MANY_IN_GROUPS if values.dim() == 3 else _MANY)
        and x.dtype == values.dtype == torch.bfloat16
        and values.shape[-1] % INPUTS.value == 0
        and values.shape[-2] % (COLUMNS.value if values.dim() == 3 else 8) == 0
    )


def plain_linear_gluon(x: Tensor, weight: Weight, dtype: torch.dtype) -> Tensor:
    """x [T, K] by [N, K], or [T, G, K] by [G, N, K], all bf16: [T, N] or [T, G, N] of ``dtype``."""
    values = weight.values
    check_operands(x, weight, values[0] if values.dim() == 3 else values)
    *groups, n, k = values.shape
    rows, width = len(x), n * (groups[0] if groups else 1)
    out = torch.empty(rows, width, dtype=dtype, device=x.device)
    count = triton.cdiv(rows, ROWS.value)
    programs = min(count * triton.cdiv(width, COLUMNS.value), multiprocessors(x.device))
    plain_kernel[(programs,)](
        described_tiles(x.reshape(rows, -1), ROWS.value, INPUTS.value),
        described_tiles(values.view(width, k), COLUMNS.value, INPUTS.value),
        described_tiles(out, 64, _OUT_BYTES // out.element_size()),
        count,
        width,
        k,
        n,
        STAGES=4,
        BAND=8,
        num_warps=4,
        enable_fp_fusion=True,
    )
    return out.view(*x.shape[:-1], n)
