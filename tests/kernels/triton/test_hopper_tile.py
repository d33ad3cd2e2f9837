"""Which Gluon kernel takes a shape: what was fastest on an H200."""

from __future__ import annotations

import pytest
import torch

from deepinfer.kernels.gemm import HopperWeight, hopper_tile
from deepinfer.kernels.gemm.k_order import KOrder


def _weight(members: int, n: int, k: int, is_fp4: bool) -> HopperWeight:
    dtype, width = (torch.int32, k // 8) if is_fp4 else (torch.float8_e4m3fn, k)
    return HopperWeight(
        values=torch.empty(members * n, width, dtype=dtype, device="meta"),
        exponents=torch.empty(1, device="meta") if is_fp4 else None,
        row_scales=torch.empty(members * n + 256, device="meta"),
        members=members,
        order=KOrder.FRAGMENT if is_fp4 else KOrder.PLAIN,
    )


@pytest.mark.parametrize(
    "members, n, k, is_fp4, rows, tile",
    [
        (1, 32768, 1280, False, 16, (16, 64)),
        (1, 32768, 1280, False, 64, (64, 64)),
        (1, 32768, 1280, False, 256, (128, 128)),
        (1, 32768, 1280, False, 4096, (128, 128)),
        (1, 5120, 8192, False, 64, (64, 64)),
        (1, 5120, 8192, False, 256, (128, 80)),
        (1, 5120, 8192, False, 360, (128, 128)),
        (1, 5120, 8192, False, 512, (192, 128)),
        (1, 5120, 8192, False, 768, (128, 128)),
        (1, 4608, 5120, False, 384, (128, 128)),
        (1, 4608, 5120, False, 512, (192, 128)),
        (1, 1792, 5120, False, 256, (64, 64)),
        (1, 1792, 5120, False, 512, (128, 80)),
        (1, 4608, 5120, False, 128, (128, 80)),
        (1, 4608, 5120, False, 160, (64, 64)),
        (1, 4608, 5120, False, 256, (128, 80)),
        (1, 1792, 5120, False, 768, (128, 128)),
        (1, 1792, 5120, False, 1536, (192, 128)),
        (1, 1792, 5120, False, 4096, (128, 128)),
        (6, 4608, 5120, False, 256, (128, 128)),
        (6, 4608, 5120, False, 512, (192, 128)),
        (48, 4608, 5120, False, 192, (192, 128)),
        (6, 4608, 5120, False, 1536, (128, 128)),
        (48, 4608, 5120, False, 9, (16, 64)),
        (48, 4608, 5120, False, 22, (32, 64)),
        (48, 4608, 5120, False, 23, (64, 64)),
        (6, 4608, 5120, True, 16, (16, 64)),
        (48, 4608, 5120, True, 10, (16, 64)),
        (48, 4608, 5120, True, 28, (32, 64)),
        (48, 4608, 5120, True, 29, (64, 64)),
        (6, 4608, 5120, True, 64, (64, 64)),
        (48, 4608, 5120, True, 64, (64, 64)),
        (48, 4608, 5120, True, 96, (128, 64)),
        (48, 5120, 2304, True, 128, (128, 64)),
        (48, 4608, 5120, True, 192, (256, 128)),
        (6, 4608, 5120, True, 256, (256, 128)),
        (48, 5120, 2304, True, 1536, (256, 128)),
    ],
)
def test_tile_of_a_shape(
    members: int, n: int, k: int, is_fp4: bool, rows: int, tile: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(hopper_tile, "multiprocessors", lambda device: 132)
    chosen = hopper_tile.hopper_tile(_weight(members, n, k, is_fp4), rows)
    assert (chosen.rows, chosen.columns) == tile
