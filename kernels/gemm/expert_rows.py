"""Which rows of a grouped GEMM use which expert's weight."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class ExpertRows:
    """P pairs (token, selected expert) sorted by expert; each expert begins with a new tile.

    R is enough rows for any routing of P pairs, so that no size depends on the routing.
    pair [R] i32: the pair of each row, -1 for padding rows, whose content is arbitrary.
    row [P] i32: the row of each pair, -1 if its expert is not on this rank.
    expert [R / tile_rows] i32: the expert of each tile, -1 for unused tiles, which come last.
    used [1] i32: number of rows in used tiles.
    paged: rows are not in the order of tiles.  ``expert`` is then 65,536 times the page of a tile's
    rows, plus the expert.
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
        """Upper bound of the number of tiles for any routing."""
        return pairs // tile_rows + min(num_experts, pairs)
