"""Operands of the Gluon products, on the GPU: codes and scales at random."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.kernels.gemm import Weight
from deepinfer.kernels.gemm.hopper_tile import (
    SQUARE_FP8,
    TRIPLE,
    WIDE_FP4,
    WIDE_FP8,
    NarrowTile,
    Speed,
)

CUDA = torch.device("cuda")
_SPEED = Speed(1, 1.0, 1.0)
FP8_TILES = (NarrowTile(32, 3, _SPEED), NarrowTile(64, 3, _SPEED), WIDE_FP8, SQUARE_FP8, TRIPLE)
FP4_TILES = (*(NarrowTile(rows, 2, _SPEED) for rows in (32, 64, 128)), WIDE_FP4)


def random_fp8(n: int, k: int) -> Weight:
    values = torch.randn(n, k, device=CUDA).mul(60).clamp(-448, 448).to(torch.float8_e4m3fn)
    scales = torch.randint(116, 120, (n // 32, k // 32), dtype=torch.uint8, device=CUDA)
    return Weight(values, scales.view(torch.float8_e8m0fnu))


def random_fp4(members: int, n: int, k: int) -> Weight:
    shape = (members, n, k // 2)
    values = torch.randint(-128, 128, shape, dtype=torch.int8, device=CUDA)
    scales = torch.randint(118, 124, (members, n, k // 32), dtype=torch.uint8, device=CUDA)
    return Weight(values, scales.view(torch.float8_e8m0fnu))


def random_rows(rows: int, k: int) -> Tensor:
    x = torch.randn(rows, k, device=CUDA)
    sizes = torch.exp2(torch.randint(-2, 3, (rows, k // 32), device=CUDA).float())
    return (x * sizes.repeat_interleave(32, 1)).to(torch.bfloat16)


def random_choices(tokens: int, per_token: int, count: int) -> Tensor:
    return torch.rand(tokens, count, device=CUDA).argsort(1)[:, :per_token].sort(1).values


def bytes_of(values: Tensor) -> Tensor:
    return values.contiguous().view(torch.uint8)
