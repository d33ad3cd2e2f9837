"""Launchers of the Gluon kernels: linear layers and grouped GEMMs on a ``HopperWeight``.

All kernels and tile shapes accumulate over K in the same order, 32 at a time in the tensor cores
and 128 at a time in fp32: which of them runs does not change the bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from deepinfer.errors import TensorError
from deepinfer.kernels.gluon_once import is_read_once
from deepinfer.kernels.launch import cdiv, describe, multiprocessors
from deepinfer.kernels.relaunch import launch

from .activations import Activations, quantize_activations
from .expert_rows import ExpertRows
from .gluon_gated import UNGATED
from .gluon_narrow import narrow_kernel
from .gluon_slim_launch import launch_slim
from .gluon_tiles import described_tiles
from .gluon_triple import triple_kernel
from .gluon_wide import wide_kernel
from .hopper_tile import (
    WIDE_FP8,
    NarrowTile,
    SlimTile,
    Tile,
    TripleTile,
    WideTile,
    hopper_tile,
    weight_form,
)
from .hopper_weights import HopperWeight
from .k_order import KOrder
from .matrix_path import MatrixPath

if TYPE_CHECKING:
    from deepinfer.kernels.exchange import Arrivals


def quantized_linear_gluon(x: Tensor | Activations, weight: HopperWeight) -> Tensor:
    """As ``quantized_linear_reference``."""
    if isinstance(x, Tensor):
        check_rows(x, weight)
        x = quantize_activations(x, MatrixPath.FP8, weight.order)
    return linear_rows_gluon(x, weight, None, hopper_tile(weight, x.values.shape[0]))


def linear_rows_gluon(
    acts: Activations,
    weight: HopperWeight,
    rows: ExpertRows | None,
    tile: Tile,
    arrivals: Arrivals | None = None,
) -> Tensor:
    """GEMM of R rows ``acts`` with ``weight``, or grouped GEMM with ``rows``: [R, N] bf16.

    With ``arrivals``, the tokens of these rows, results are stored in the memory of the ranks that
    the tokens came from, and the buffer for this rank's own tokens is returned.
    """
    values, scales = operands_for(acts, weight)
    shape = len(values), weight.num_rows
    if arrivals is None:
        out = torch.empty(shape, dtype=torch.bfloat16, device=values.device)
    else:
        out = arrivals.buffers.results
    if not shape[0]:
        return out
    if isinstance(tile, NarrowTile):
        launch_narrow(values, scales, weight, rows, out, tile, arrivals=arrivals)
    elif isinstance(tile, SlimTile):
        assert rows is None
        launch_slim(values, scales, weight, out, tile)
    elif isinstance(tile, TripleTile):
        assert arrivals is None, "these tiles cannot store to other ranks"
        box = described_tiles(out, 64, tile.columns)
        launch_triple(values, scales, weight, rows, box, shape, tile)
    else:
        box = described_tiles(out, 64, 128)
        launch_wide(values, scales, weight, rows, box, shape, tile, arrivals=arrivals)
    return out


def fits_gate(weight: HopperWeight, tile: Tile, rows: int) -> bool:
    """Whether ``gated_rows_gluon`` supports these, and is faster than a separate SwiGLU kernel; the
    bits are the same."""
    if weight.counters is None:
        return False
    if isinstance(tile, NarrowTile):
        if weight.members == 1 and tile.rows > 16:  # too few programs to hide what the last ones do
            return False
        return -(-rows // tile.rows) * (weight.num_rows // 256) <= len(weight.counters)
    return tile is WIDE_FP8


def gated_rows_gluon(
    acts: Activations,
    weight: HopperWeight,
    tile: Tile,
    order: KOrder,
    limit: float,
    rows: ExpertRows | None = None,
    weights: Tensor | None = None,
) -> Activations:
    """Gate and up projections of ``acts`` with fused SwiGLU and quantization: activations
    [R, N / 2] in ``order``.

    ``weights`` [P] f32: routing weights of the pairs of ``rows``, for a grouped GEMM.
    """
    operands = operands_for(acts, weight)
    count, device = len(acts.values), acts.values.device
    out = Activations.empty(count, weight.num_rows // 2, MatrixPath.FP8, order, device)
    values, scales = out.writer
    if count and isinstance(tile, NarrowTile):
        hidden = torch.empty(count, weight.num_rows, dtype=torch.bfloat16, device=device)
        launch_narrow(
            *operands, weight, rows, hidden, tile, weights=weights,
            gated=(values, scales), gate_stride=out.scale_stride, limit=limit, gate=order,
        )  # fmt: skip
    elif count:
        assert isinstance(tile, WideTile)
        launch_wide(
            *operands, weight, rows, described_tiles(values, 64, 64),
            (count, weight.num_rows), tile, weights=weights, out_scales=scales,
            out_stride=out.scale_stride, limit=limit, gate=order,
        )  # fmt: skip
    return out


def operands_for(acts: Activations, weight: HopperWeight, groups: int = 1) -> tuple[Tensor, Tensor]:
    """Values and scales.  Raises: TensorError if they were not quantized for such a weight."""
    values, scales, k = acts.values, acts.scales, groups * weight.k
    if scales is None or acts.order is not weight.order or values.shape[1] != k:
        raise TensorError(
            f"x: expected FP8 activations [any, {k}] in order {weight.order.name}, "
            f"found {acts.path.name} [any, {values.shape[1]}] in {acts.order.name}"
        )
    return values, scales


def check_rows(x: Tensor, weight: HopperWeight) -> None:
    """Check that x is [T, K] bf16 on the device of ``weight``.

    Raises: TensorError that says what was expected and what was found.
    """
    if x.dtype != torch.bfloat16 or x.shape[1:] != (weight.k,) or x.device != weight.values.device:
        raise TensorError(
            f"x: expected torch.bfloat16 [..., {weight.k}] on {weight.values.device}, "
            f"found {describe(x)}"
        )


def launch_narrow(
    values: Tensor,
    scales: Tensor,
    weight: HopperWeight,
    expert_rows: ExpertRows | None,
    out: Tensor,
    tile: NarrowTile,
    *,
    arrivals: Arrivals | None = None,
    weights: Tensor | None = None,
    gated: tuple[Tensor, Tensor] | None = None,
    gate_stride: int = 0,
    limit: float = 0.0,
    gate: int = UNGATED.value,
    group_columns: int = 0,
) -> None:
    """Launch ``narrow_kernel``: GEMM or grouped GEMM of values [R, K] with ``scales``, written to
    ``out`` [R, N] bf16, in tiles of few rows.

    ``gated``: also apply SwiGLU, scale by the routing ``weights`` of the pairs, and quantize to
    these values, in the order of K ``gate``, and scales with ``gate_stride`` between groups of 128.
    ``arrivals``: results are stored where their tokens came from.
    """
    rows, n = values.shape[0], weight.num_rows
    form = weight_form(weight)
    w_scales = weight.row_scales
    exponents = w_scales if weight.exponents is None else weight.exponents.view(-1)
    count = cdiv(rows, tile.rows)
    launch(narrow_kernel, (cdiv(n, 64), count))(
        described_tiles(values, tile.rows, 256),
        described_tiles(scales, 2, tile.rows),
        described_tiles(weight.values, 64, 256 if form == 1 else 32),
        described_tiles(exponents, 128),
        out,
        w_scales,
        w_scales if expert_rows is None else expert_rows.expert,
        w_scales if expert_rows is None else expert_rows.pair,
        *((w_scales, w_scales) if gated is None else gated),
        w_scales if weights is None else weights,
        w_scales if gated is None or weight.counters is None else weight.counters,
        w_scales if arrivals is None else arrivals.buffers.homes,
        rows,
        n,
        weight.k,
        gate_stride,
        limit,
        1 if arrivals is None else arrivals.most_tokens,
        FORMAT=form,
        TOKENS=tile.rows,
        STAGES=tile.stages,
        GROUPED=expert_rows is not None,
        PAGED=expert_rows is not None and expert_rows.paged,
        GATE=int(gate),
        TOP_K=_choices(expert_rows, arrivals),
        GROUP_COLUMNS=group_columns,
        EVICT_FIRST=expert_rows is None and is_read_once(count),
        num_warps=4,
        enable_fp_fusion=True,
    )


def launch_wide(
    values: Tensor,
    scales: Tensor,
    weight: HopperWeight,
    expert_rows: ExpertRows | None,
    out: TensorDescriptor,
    shape: Sequence[int],
    tile: WideTile,
    *,
    arrivals: Arrivals | None = None,
    weights: Tensor | None = None,
    out_scales: Tensor | None = None,
    out_stride: int = 0,
    limit: float = 0.0,
    gate: int = UNGATED.value,
    group_columns: int = 0,
) -> None:
    """Launch ``wide_kernel``, persistent, in tiles of 128 or 256 rows; with ``gate`` only the
    quantized results of SwiGLU are written, to ``out`` and ``out_scales``."""
    assert expert_rows is None or not expert_rows.paged, "these tiles must be stored in order"
    rows, n = shape
    form = weight_form(weight)
    w_scales = weight.row_scales
    count = cdiv(rows, tile.rows)
    columns = tile.columns if gate == UNGATED.value else 256
    programs = min(count * cdiv(n, columns), multiprocessors(values.device))
    launch(wide_kernel, (programs,))(
        described_tiles(values, tile.rows, 128),
        described_tiles(scales.view(-1), tile.rows),
        described_tiles(weight.values, tile.columns, 128 if form == 1 else 32),
        described_tiles(w_scales, 128)
        if weight.exponents is None
        else described_tiles(weight.exponents.flatten(1), tile.columns // 64, 128),
        out,
        w_scales,
        w_scales if expert_rows is None else expert_rows.expert,
        w_scales if expert_rows is None else expert_rows.pair,
        w_scales if expert_rows is None else expert_rows.used,
        w_scales if weights is None else weights,
        w_scales if out_scales is None else out_scales,
        w_scales if arrivals is None else arrivals.buffers.homes,
        count,
        n,
        weight.k,
        scales.stride(0),
        out_stride,
        limit,
        1 if arrivals is None else arrivals.most_tokens,
        FORMAT=form,
        GROUPED=expert_rows is not None,
        GATE=int(gate),
        TOP_K=_choices(expert_rows, arrivals),
        GROUP_COLUMNS=group_columns,
        EVICT_FIRST=form == 1 and expert_rows is None and is_read_once(count),
        **tile.constants,
        num_warps=4,
        enable_fp_fusion=True,
    )


def launch_triple(
    values: Tensor,
    scales: Tensor,
    weight: HopperWeight,
    expert_rows: ExpertRows | None,
    out: TensorDescriptor,
    shape: Sequence[int],
    tile: TripleTile,
    *,
    out_scales: Tensor | None = None,
    out_stride: int = 0,
    group_columns: int = 0,
) -> None:
    """Launch ``triple_kernel`` in tiles of 192 rows; with ``out_scales`` results are quantized."""
    assert expert_rows is None or not expert_rows.paged, "these tiles must be stored in order"
    rows, n = shape
    w_scales = weight.row_scales
    count = cdiv(rows, tile.rows)
    programs = min(count * cdiv(n, tile.columns), multiprocessors(values.device))
    launch(triple_kernel, (programs,))(
        described_tiles(values, 64, 128),
        described_tiles(scales.view(-1), 64),
        described_tiles(weight.values, tile.columns, 128),
        out,
        w_scales,
        w_scales if expert_rows is None else expert_rows.expert,
        w_scales if expert_rows is None else expert_rows.pair,
        w_scales if expert_rows is None else expert_rows.used,
        w_scales if out_scales is None else out_scales,
        rows,
        count,
        n,
        weight.k,
        scales.stride(0),
        out_stride,
        STAGES=tile.stages,
        GROUPED=expert_rows is not None,
        GROUP_M=8,
        REGISTERS=tile.registers,
        GROUP_COLUMNS=group_columns,
        num_warps=4,
        enable_fp_fusion=True,
    )


def _choices(rows: ExpertRows | None, arrivals: Arrivals | None) -> int:
    """Experts per token, if results are stored where their tokens came from; else 0."""
    return 0 if rows is None or arrivals is None else rows.per_token
