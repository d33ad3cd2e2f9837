"""Launchers of ``gluon_plain.py``: GEMMs with bf16 weights for many rows on NVIDIA SM90."""

from __future__ import annotations

import torch
from torch import Tensor
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from deepinfer.errors import TensorError
from deepinfer.kernels.launch import cdiv, check_tensor, multiprocessors
from deepinfer.kernels.relaunch import launch

from .activations import Activations
from .checks import check_groups, check_operands
from .gluon_plain import COLUMNS, INPUTS, ROWS, plain_kernel
from .gluon_tiles import described_tiles
from .hopper_weights import HopperWeight
from .weights import Weight

# With fewer rows the Triton kernel, whose left operand is the weight, is faster; the more so if a
# group has few columns.
_MANY, _MANY_IN_GROUPS = 96, 256
_OUT_BYTES = 256  # per row of a TMA box of the result


def fits_plain(x: Tensor, weight: Weight) -> bool:
    """Whether ``plain_linear_gluon`` supports these; it has the bits of the Triton kernel."""
    values = weight.values
    return (
        x.dim() == values.dim() > 1
        and x.shape[0] >= (_MANY_IN_GROUPS if values.dim() == 3 else _MANY)
        and x.dtype == values.dtype == torch.bfloat16
        and values.shape[-1] % INPUTS.value == 0
        and values.shape[-2] % (COLUMNS.value if values.dim() == 3 else 8) == 0
    )


def plain_linear_gluon(x: Tensor, weight: Weight) -> Tensor:
    """x [T, K] and a weight [N, K], or [T, G, K] and [G, N, K], all bf16: [T, N] or [T, G, N]
    bf16."""
    _check(x, weight)
    out = torch.empty(len(x), _width(weight), dtype=torch.bfloat16, device=x.device)
    _launch(x, weight, _result_tiles(out), out, 0)
    return out.view(*x.shape[:-1], weight.values.shape[-2])


def plain_fp32_linear_gluon(
    x: Tensor, weight: Weight, addend: Tensor | None = None, out: Tensor | None = None
) -> Tensor:
    """x [T, K] bf16 and a weight [N, K] bf16, plus ``addend`` [T, N] f32: [T, N] f32, written to
    ``out`` if given."""
    _check(x, weight)
    shape = len(x), len(weight.values)
    if out is None:
        out = torch.empty(shape, dtype=torch.float32, device=x.device)
    check_tensor("out", out, torch.float32, shape, x)
    if addend is not None:
        check_tensor("addend", addend, torch.float32, shape, x)
    _launch(x, weight, _result_tiles(out), out, 0, addend)
    return out


def plain_linear_quantized_gluon(x: Tensor, weight: Weight, linear: HopperWeight) -> Activations:
    """``plain_linear_gluon``, quantized for the weight ``linear`` in plain order of K: [T, G N]."""
    _check(x, weight)
    if _width(weight) != linear.k:
        raise TensorError(f"weight: expected {linear.k} rows in total, found {_width(weight)}")
    acts = Activations.empty_for(linear, len(x), linear.k)
    values, scales = acts.writer
    _launch(x, weight, described_tiles(values, 64, 64), scales, acts.scale_stride)
    return acts


def _result_tiles(out: Tensor) -> TensorDescriptor:
    return described_tiles(out, 64, _OUT_BYTES // out.element_size())


def _check(x: Tensor, weight: Weight) -> None:
    """Raises: TensorError."""
    if weight.values.dim() == 3:
        check_groups(x, weight)
    else:
        check_operands(x, weight, weight.values)


def _width(weight: Weight) -> int:
    return weight.values.shape[:-1].numel()


def _launch(
    x: Tensor,
    weight: Weight,
    out: TensorDescriptor,
    scales: Tensor,
    scale_stride: int,
    addend: Tensor | None = None,
) -> None:
    values = weight.values
    n, k = values.shape[-2:]
    rows, width = len(x), _width(weight)
    count = cdiv(rows, ROWS.value)
    programs = min(count * cdiv(width, COLUMNS.value), multiprocessors(x.device))
    launch(plain_kernel, (programs,))(
        described_tiles(x.contiguous().view(rows, -1), ROWS.value, INPUTS.value),
        described_tiles(values.view(width, k), COLUMNS.value, INPUTS.value),
        out,
        scales,
        x if addend is None else addend,
        count,
        rows,
        width,
        k,
        n,
        scale_stride,
        STAGES=4,
        GROUP_M=8,
        HAS_ADDEND=addend is not None,
        num_warps=4,
        enable_fp_fusion=True,
    )
