"""How a machine multiplies packed weights, and the tiles it does that with."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch

from deepinfer.kernels.launch import capability, is_interpreted, is_npu


class MatrixPath(IntEnum):
    """The form in which weights and activations meet in the matrix unit.

    DECODED: both as plain numbers (bf16; fp32 in the interpreter): right everywhere.
    FP8: both as E4M3; the 32-wide scales of 128 inputs are folded into one (NVIDIA SM90).
    SCALED: packed numbers and their 32-wide scales as they are (NVIDIA SM100, SM103).
    """

    DECODED = 0
    FP8 = 1
    SCALED = 2

    @property
    def block(self) -> int:
        """How many inputs of a row of activations share a scale."""
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
    """Outputs of one program: ``width`` weight rows for ``tokens`` rows of activations."""

    width: int
    tokens: int
    num_warps: int
    num_stages: int


_NARROW = Tile(64, 16, 4, 4)
_NARROW_NPU = Tile(64, 32, 4, 4)
_MIDDLE = Tile(64, 64, 4, 4)
_WIDE = Tile(128, 128, 8, 3)
TILES = (_NARROW, _MIDDLE, _WIDE)
# Fewer wide tiles than this leave some of 132 multiprocessors without work.
_ENOUGH_TILES = 256


def tile_for(rows: int, width: int, members: int, path: MatrixPath, device: torch.device) -> Tile:
    """A tile for ``members`` weights of ``width`` rows, each for about ``rows`` activations.

    It only says how many outputs share a load.  Each output is the same chain of products over K in
    every tile, so the choice does not reach the bits (``pytest -m gpu`` compares them).
    """
    wide_tiles = members * -(-rows // _WIDE.tokens) * -(-width // _WIDE.width)
    is_wide = rows > _MIDDLE.tokens * 2 and wide_tiles >= _ENOUGH_TILES
    narrow = _NARROW_NPU if device is not None and is_npu(device) else _NARROW
    tile = narrow if rows <= narrow.tokens else _WIDE if is_wide else _MIDDLE
    if path is MatrixPath.SCALED:  # its matrix unit takes 128 weight rows
        return Tile(128, tile.tokens, tile.num_warps, 3)
    return tile
