"""Row layout of a grouped GEMM: which rows of activations belong to which expert."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class ExpertRows:
    """P (token, expert) pairs sorted by expert; each expert starts at a new tile.

    R is the number of rows for the worst-case routing, so that no size depends on the routing.
    pair [R] i32: the pair of each row, -1 for padding rows, whose values are undefined.
    row [P] i32: the row of each pair, -1 if its expert is not on this device.
    expert [R / tile_rows] i32: the expert of each tile, -1 for unused tiles, which come last.
    used [1] i32: the number of rows of used tiles.
    paged: tiles are not stored in order.  ``expert`` is then 65,536 times the position of a tile's
    rows, counted in tiles, plus its expert.
    Pair p belongs to token p // per_token.
    """

    pair: Tensor
    row: Tensor
    expert: Tensor
    used: Tensor
    per_token: int
    tile_rows: int
    paged: bool = False

    @staticmethod
    def most_tiles(pairs: int, num_experts: int, tile_rows: int) -> int:
        """The number of tiles for the worst-case routing."""
        return pairs // tile_rows + min(num_experts, pairs)
