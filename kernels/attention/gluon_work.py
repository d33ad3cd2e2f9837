"""Sizes of the Hopper attention kernel, and its enumeration of work.

An *item* is a query and a piece of its key tiles; window tiles come first.  A *unit* is 64 rows of
256 bytes: half of the values of a window tile, or a main tile.  Tiles are processed in pairs,
unless a piece is a single tile.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

HEADS = gl.constexpr(64)
WIDTH = gl.constexpr(512)
HALF = gl.constexpr(256)
TILE = gl.constexpr(64)

TILE_BF16 = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))
# Layout of quantized results, by pairs.  With a 128-byte swizzle a thread needs eight addresses
# instead of four, which Triton 3.9 hoists out of the loop over items and spills.
TILE_E4M3 = gl.constexpr(gl.NVMMASharedLayout(64, 16, 2))

# Barriers: halves (left and right values) of the two tile buffers full and empty, P of a tile
# available, query loaded, prepared (rotated, normalized) and read.
FULL = gl.constexpr(0)
EMPTY = gl.constexpr(4)
WEIGHTS = gl.constexpr(8)
QUERY_THERE = gl.constexpr(10)
QUERY_PREPARED = gl.constexpr(11)
QUERY_READ = gl.constexpr(12)
BARRIERS = gl.constexpr(13)

# Rows of the data that consumers exchange: maximum and sum of each tile, then factors of scores.
FACTORS = gl.constexpr(4)


@gluon.jit
def opaque_zero(x):
    """A 0 that is opaque to the compiler, so that code that depends on it is not hoisted.

    Otherwise addresses and matrix descriptors would be computed before a loop and spilled, or the
    loop unrolled.
    """
    return gl.inline_asm_elementwise(
        "mov.b32 $0, 0;", "=r,r", [x], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def _first_tile(item, PIECES: gl.constexpr, PIECE_TILES: gl.constexpr):
    return item % PIECES * PIECE_TILES if PIECES > 1 else 0


@gluon.jit
def pairs_of(item, PIECES: gl.constexpr, PIECE_TILES: gl.constexpr, TOTAL_TILES: gl.constexpr):
    """Number of pairs of tiles of an item; the last tile of all may have no keys."""
    if PIECES == 1:
        return (TOTAL_TILES + 1) // 2
    rest = TOTAL_TILES - _first_tile(item, PIECES, PIECE_TILES)
    return (gl.minimum(rest, PIECE_TILES) + 1) // 2


@gluon.jit
def first_unit(
    item, PIECES: gl.constexpr, PIECE_TILES: gl.constexpr, WINDOW_TILES: gl.constexpr
):  # fmt: skip
    tile = _first_tile(item, PIECES, PIECE_TILES)
    return tile + gl.minimum(tile, WINDOW_TILES)


@gluon.jit
def unit_after(
    item, unit, PIECES: gl.constexpr, PIECE_TILES: gl.constexpr, WINDOW_TILES: gl.constexpr,
    TOTAL_TILES: gl.constexpr,
):  # fmt: skip
    """The next (item, unit): the next unit of the item, or the first of this program's next
    item."""
    pairs = pairs_of(item, PIECES, PIECE_TILES, TOTAL_TILES)
    last = _first_tile(item, PIECES, PIECE_TILES) + (1 if PIECE_TILES == 1 else 2 * pairs)
    is_last = unit + 1 == last + gl.minimum(last, WINDOW_TILES)
    new_item = gl.where(is_last, item + gl.num_programs(0), item)
    first = first_unit(new_item, PIECES, PIECE_TILES, WINDOW_TILES)
    return new_item, gl.where(is_last, first, unit + 1)
