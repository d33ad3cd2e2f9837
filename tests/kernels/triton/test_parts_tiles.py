"""Which tile multiplies the router's rows: what was fastest on an H200."""

from __future__ import annotations

import pytest

from deepinfer.kernels.gemm.parts_tiles import parts_tile

_PROGRAMS = 132


@pytest.mark.parametrize(
    "rows, tile, added",
    [
        (1, (64, 64), 1),
        (256, (64, 64), 1),
        (512, (128, 64), 1),
        (1024, (64, 192), 1),
        (1536, (128, 192), 1),
        (4096, (128, 192), 1),
        (8192, (128, 192), 4),
        (16384, (128, 192), 4),
    ],
)
def test_tiles_of_the_router(rows: int, tile: tuple[int, int], added: int) -> None:
    found, parts = parts_tile(rows, 384, 5120, 4, _PROGRAMS)
    assert ((found.rows, 64 * found.subtiles), parts) == (tile, added)


@pytest.mark.parametrize("rows", [1, 100, 2000, 16384, 50000])
def test_parts_are_added_up_only_where_that_leaves_enough_programs(rows: int) -> None:
    tile, added = parts_tile(rows, 384, 5120, 4, _PROGRAMS)
    columns = -(-384 // (64 * tile.subtiles))
    assert added in (1, 4)
    assert added == 1 or -(-rows // tile.rows) * columns > _PROGRAMS // 2
