"""How a device multiplies packed weights, and the tile shapes of the Triton kernel."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch

from deepinfer.kernels.launch import capability, is_interpreted, is_npu


class MatrixPath(IntEnum):
    """The formats of weights and activations as MMA operands.

    DECODED: both as bf16 (fp32 in the interpreter); works on every device.
    FP8: both as E4M3; the four block scales of 128 along K are folded into one (NVIDIA SM90).
    SCALED: packed values with their scales per 32, unchanged (NVIDIA SM100, SM103).
    """

    DECODED = 0
    FP8 = 1
    SCALED = 2

    @property
    def block(self) -> int:
        """How many values along K of a row of activations share a scale."""
        return 128 if self is MatrixPath.FP8 else 32

    @staticmethod
    def of(device: torch.device) -> MatrixPath:
        """The fastest path of ``device``."""
        if device.type != "cuda" or is_interpreted():
            return MatrixPath.DECODED
        major, _ = capability(device)
        return {9: MatrixPath.FP8, 10: MatrixPath.SCALED}.get(major, MatrixPath.DECODED)


@dataclass(frozen=True)
class Tile:
    """Output tile of one program: ``width`` weight rows by ``tokens`` rows of activations."""

    width: int
    tokens: int
    num_warps: int
    num_stages: int


_NARROW = Tile(64, 16, 4, 4)
_NARROW_NPU = Tile(64, 32, 4, 4)
_MIDDLE = Tile(64, 64, 4, 4)
_WIDE = Tile(128, 128, 8, 3)
TILES = (_NARROW, _MIDDLE, _WIDE)
# Fewer wide tiles than this leave some of 132 SMs idle.
_ENOUGH_TILES = 256


def tile_for(rows: int, width: int, members: int, path: MatrixPath, device: torch.device) -> Tile:
    """A tile for ``members`` weights of ``width`` rows, each with about ``rows`` rows of
    activations.

    The accumulation order of an output over K is the same in every tile, so the choice does not
    change the bits (``pytest -m gpu`` compares them).
    """
    wide_tiles = members * -(-rows // _WIDE.tokens) * -(-width // _WIDE.width)
    is_wide = rows > _MIDDLE.tokens * 2 and wide_tiles >= _ENOUGH_TILES
    narrow = _NARROW_NPU if device is not None and is_npu(device) else _NARROW
    tile = narrow if rows <= narrow.tokens else _WIDE if is_wide else _MIDDLE
    if path is MatrixPath.SCALED:  # tcgen05 MMAs take 128 weight rows
        return Tile(128, tile.tokens, tile.num_warps, 3)
    return tile
