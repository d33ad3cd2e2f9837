"""Which activations meet which expert's weight: the rows of a grouped GEMM."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class ExpertRows:
    """P pairs of token and choice in the order of experts; each expert begins with a new tile.

    R rows are as many as any routing of P pairs takes, so that no size depends on the routing.
    pair [R] i32: the pair of each row, -1 for rows that only fill a tile, which may hold anything.
    row [P] i32: the row of each pair, -1 if its expert is not here.
    expert [R / tile_rows] i32: whose each tile is, -1 for the unused ones, which come last.
    used [1] i32: rows of tiles that are not unused.
    paged: rows are not in the order of tiles.  ``expert`` is then 65,536 times where the rows of a
    tile are, counted in tiles, plus whose it is.
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
        """Of any routing."""
        return pairs // tile_rows + min(num_experts, pairs)
