"""Grouped linear layers in FP8 on NVIDIA SM90: each group of output columns has its own inputs."""

from __future__ import annotations

import torch
from torch import Tensor
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from deepinfer.errors import TensorError
from deepinfer.kernels.launch import check_tensor

from .activations import Activations, quantize_activations
from .gluon_kernel import launch_narrow, launch_triple, launch_wide, operands_for
from .gluon_tiles import described_tiles
from .hopper_tile import NarrowTile, Tile, TripleTile, WideTile, hopper_tile
from .hopper_weights import HopperWeight
from .k_order import KOrder
from .matrix_path import MatrixPath
from .weights import Weight

_COLUMNS = 128  # groups have a multiple of this, so that no tile crosses from one to the next


def fits_grouped(weight: HopperWeight) -> bool:
    """Whether ``grouped_linear_gluon`` supports it."""
    return weight.exponents is None and not weight.is_gated and weight.num_rows % _COLUMNS == 0


def grouped_linear_gluon(
    x: Tensor | Activations,
    weight: HopperWeight,
    linear: Weight | HopperWeight | None = None,
    tile: Tile | None = None,
) -> Tensor | Activations:
    """``grouped_linear_reference`` on FP8 activations: x [T, G, K] bf16, or [T, G K] quantized.

    The result [T, G N] is an input of ``quantized_linear`` for the weight ``linear``: bf16, or
    quantized if that takes FP8 in the plain order of K and rows are many.  The bits are those of
    one GEMM per group.
    Raises: TensorError for operands that do not fit.
    """
    if not fits_grouped(weight):
        raise TensorError(
            f"weight: expected groups of a multiple of {_COLUMNS} rows of FP8, found "
            f"{weight.members} of {weight.num_rows} in {weight.values.dtype}"
        )
    if isinstance(x, Tensor):
        check_tensor("x", x, torch.bfloat16, (None, weight.members, weight.k), weight.values)
        x = quantize_activations(x.flatten(1), MatrixPath.FP8, weight.order)
    columns, weight = weight.num_rows, weight.as_one
    rows, n = len(x.values), weight.num_rows
    if isinstance(linear, HopperWeight) and linear.k != n:
        raise TensorError(f"linear: expected {n} inputs, found {linear.k}")
    operands = operands_for(x, weight, n // columns)
    tile = tile or hopper_tile(weight, rows, columns)
    is_plain = isinstance(linear, HopperWeight) and linear.order is KOrder.PLAIN
    if linear is None or not is_plain or isinstance(tile, NarrowTile):
        out = torch.empty(rows, n, dtype=torch.bfloat16, device=x.values.device)
        _launch(operands, weight, columns, tile, described_tiles(out, 64, 128), out)
        return out
    quantized = Activations.empty_for(linear, rows, n)
    values, scales = quantized.writer
    box = described_tiles(values, 64, 64)
    _launch(operands, weight, columns, tile, box, values, scales, quantized.scale_stride)
    return quantized


def _launch(
    operands: tuple[Tensor, Tensor],
    weight: HopperWeight,
    columns: int,
    tile: Tile,
    box: TensorDescriptor,
    out: Tensor,
    out_scales: Tensor | None = None,
    out_stride: int = 0,
) -> None:
    """``box`` is the TMA descriptor of ``out``."""
    rows = len(out)
    if not rows:
        return
    shape = rows, weight.num_rows
    if isinstance(tile, NarrowTile):
        launch_narrow(*operands, weight, None, out, tile, group_columns=columns)
    elif isinstance(tile, TripleTile):
        launch_triple(
            *operands, weight, None, box, shape, tile,
            out_scales=out_scales, out_stride=out_stride, group_columns=columns,
        )  # fmt: skip
    else:
        assert isinstance(tile, WideTile), "slim tiles would cross from one group to the next"
        launch_wide(
            *operands, weight, None, box, shape, tile,
            out_scales=out_scales, out_stride=out_stride, group_columns=columns,
        )  # fmt: skip
