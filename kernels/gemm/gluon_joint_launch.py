"""Launcher of ``gluon_joint.py``: gate and up projections and the router's GEMM on the same
rows."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.kernels.launch import cdiv, check_tensor, multiprocessors
from deepinfer.kernels.relaunch import launch

from .activations import Activations
from .checks import check_operands
from .gluon_joint import joint_kernel
from .gluon_kernel import operands_for
from .gluon_parts import INPUTS
from .gluon_parts_launch import fits_parts
from .gluon_tiles import described_tiles
from .hopper_tile import WIDE_FP8, weight_form
from .hopper_weights import HopperWeight
from .joint_tiles import COLUMNS, PLAIN_COLUMNS, ROWS, is_joint_faster
from .k_order import KOrder
from .matrix_path import MatrixPath
from .weights import Weight


def fits_joint(x: Tensor, gate_up: HopperWeight, plain: Weight, parts: int) -> bool:
    """Whether ``gated_joint_gluon`` supports these, and is faster than two separate GEMMs; the bits
    are the same."""
    if not (fits_parts(x, plain, parts) and gate_up.is_gated and weight_form(gate_up) == 1):
        return False
    sizes = gate_up.num_rows, len(plain.values), gate_up.k
    return is_joint_faster(len(x), *sizes, parts, multiprocessors(x.device))


def gated_joint_gluon(
    acts: Activations,
    gate_up: HopperWeight,
    order: KOrder,
    limit: float,
    x: Tensor,
    plain: Weight,
    parts: int,
    *,
    preset: tuple[Tensor, int] | None = None,
) -> tuple[Activations, Tensor]:
    """``gated_rows_gluon`` of ``acts`` and ``fp32_linear_parts`` of the same rows x [R, K], R > 0:
    activations [R, N / 2] and partial sums [R, parts, M] f32."""
    values, scales = operands_for(acts, gate_up)
    check_operands(x, plain, plain.values)
    rows, (m, k), tile = len(values), plain.values.shape, WIDE_FP8
    check_tensor("x", x, torch.bfloat16, (rows, k), values)
    out = Activations.empty(rows, gate_up.num_rows // 2, MatrixPath.FP8, order, x.device)
    out_values, out_scales = out.writer
    sums = torch.empty(rows, parts, m, dtype=torch.float32, device=x.device)
    numbers, value = (sums, 0) if preset is None else preset
    if preset is not None:
        check_tensor("preset", numbers, torch.int32, (None,), values)
    count = cdiv(rows, ROWS)
    tiles = count * (gate_up.num_rows // COLUMNS + cdiv(m, PLAIN_COLUMNS) * parts)
    launch(joint_kernel, (min(tiles, multiprocessors(x.device)),))(
        described_tiles(values, ROWS, 128),
        described_tiles(scales.view(-1), ROWS),
        described_tiles(gate_up.values, COLUMNS, 128),
        described_tiles(out_values, 64, 64),
        gate_up.row_scales,
        out_scales,
        described_tiles(x, ROWS, INPUTS.value),
        described_tiles(plain.values, 64, INPUTS.value),
        described_tiles(sums.view(rows, -1), 32, 64),
        numbers,
        0 if preset is None else len(numbers),
        value,
        count,
        gate_up.num_rows,
        gate_up.k,
        scales.stride(0),
        out.scale_stride,
        limit,
        rows,
        m,
        k // parts,
        STAGES=tile.stages,
        GROUP_M=8,
        REGISTERS=tile.registers,
        GATE=int(order),
        PARTS=parts,
        num_warps=4,
        enable_fp_fusion=True,
    )
    return out, sums
