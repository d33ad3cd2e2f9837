"""Launcher of ``gluon_slim.py``."""

from __future__ import annotations

from torch import Tensor

from deepinfer.kernels.gluon_once import is_read_once
from deepinfer.kernels.launch import cdiv, multiprocessors
from deepinfer.kernels.relaunch import launch

from .gluon_slim import slim_kernel
from .gluon_tiles import described_tiles
from .hopper_tile import SlimTile
from .hopper_weights import HopperWeight


def launch_slim(
    values: Tensor, scales: Tensor, weight: HopperWeight, out: Tensor, tile: SlimTile
) -> None:
    """values [R, K] e4m3 in the weight's order of K, scales [K / 128, S] f32; out [R, N] bf16."""
    rows, n = out.shape
    count = cdiv(rows, tile.rows)
    programs = min(count * cdiv(n, tile.columns), multiprocessors(values.device))
    launch(slim_kernel, (programs,))(
        described_tiles(values, tile.rows, 128),
        described_tiles(scales.view(-1), tile.rows),
        described_tiles(weight.values, 64, 128),
        described_tiles(weight.values, 16, 128),
        described_tiles(out, 64, 64),
        described_tiles(out, 64, 16),
        weight.row_scales,
        count,
        n,
        weight.k,
        scales.stride(0),
        STAGES=tile.stages,
        GROUP_M=8,
        UNROLL=4,
        REGISTERS=tile.registers,
        EVICT_FIRST=is_read_once(count),
        num_warps=4,
        enable_fp_fusion=True,
    )
