"""Sizes of the Hopper attention kernel, and how it numbers its work.

An *item* is a query and a piece of its key tiles; window tiles come first.  A *unit* is 64 rows of
256 bytes: half of the values of a window tile, or a main tile.  Tiles are worked on in pairs,
unless a piece is a single one.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

HEADS = gl.constexpr(64)
WIDTH = gl.constexpr(512)
HALF = gl.constexpr(256)
TILE = gl.constexpr(64)

TILE_BF16 = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))
# Of quantised results, by pairs.  Where 128 bytes are permuted a thread has eight addresses instead
# of four, which Triton 3.9 computes before all items and keeps outside of registers.
TILE_E4M3 = gl.constexpr(gl.NVMMASharedLayout(64, 16, 2))

# Barriers: halves (left and right values) of the two tiles full and empty, weights of a tile there,
# query there, prepared (turned, normalised) and read.
FULL = gl.constexpr(0)
EMPTY = gl.constexpr(4)
WEIGHTS = gl.constexpr(8)
QUERY_THERE = gl.constexpr(10)
QUERY_PREPARED = gl.constexpr(11)
QUERY_READ = gl.constexpr(12)
BARRIERS = gl.constexpr(13)

# Rows of what consumers tell each other: maximum and sum of a tile each, factors of scores.
FACTORS = gl.constexpr(4)


@gluon.jit
def opaque_zero(x):
    """0, which the compiler cannot know: what depends on it stays where it is.

    It would compute addresses and matrix descriptors of a loop before it and spill them, or unroll
    the loop.
    """
    return gl.inline_asm_elementwise(
        "mov.b32 $0, 0;", "=r,r", [x], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def _first_tile(item, PIECES: gl.constexpr, PIECE_TILES: gl.constexpr):
    return item % PIECES * PIECE_TILES if PIECES > 1 else 0


@gluon.jit
def pairs_of(item, PIECES: gl.constexpr, PIECE_TILES: gl.constexpr, TOTAL_TILES: gl.constexpr):
    """Pairs of tiles in a piece of work; the last tile of all may be without keys."""
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
    """(item, unit) after this one: the next of the piece, or the first of this block's next."""
    pairs = pairs_of(item, PIECES, PIECE_TILES, TOTAL_TILES)
    last = _first_tile(item, PIECES, PIECE_TILES) + (1 if PIECE_TILES == 1 else 2 * pairs)
    is_last = unit + 1 == last + gl.minimum(last, WINDOW_TILES)
    new_item = gl.where(is_last, item + gl.num_programs(0), item)
    first = first_unit(new_item, PIECES, PIECE_TILES, WINDOW_TILES)
    return new_item, gl.where(is_last, first, unit + 1)
