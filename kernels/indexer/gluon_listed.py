"""Index scores for Hopper in Gluon, only for the entries in listed blocks, one query at a time.

Queries of one request seldom list the same blocks, so there is little reuse: each reads its own
keys.  The pool rows of a work unit's blocks are looked up before its tiles.  MMAs and rounding are
those of ``score_gluon_kernel``.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from deepinfer.kernels.gluon_names import seen_as, thread_barrier

from .gluon_kernel import (
    HEADS,
    POSITIVE,
    QUERY_BYTES,
    ROW_LAYOUT,
    SUMS,
    TILE,
    as_operand,
    as_terms,
    decode,
    in_product_order,
    load_rows,
    store_queries,
)

# Half as many columns as for two queries.
DOTS = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 32, 32]))
KEYS = gl.constexpr(gl.DotOperandLayout(0, DOTS.value, 4))
ONES = gl.constexpr(gl.NVMMASharedLayout(64, 16, 2))
# Entries per listed block; a tile has as many blocks as a block has entries.
SIZE = gl.constexpr(8)
MOST_TILES = gl.constexpr(64)
ROWS = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))
# [8 blocks, 8 entries]: a thread has the rows that it has in ROW_LAYOUT.
BLOCK_ROWS = gl.constexpr(
    gl.DistributedLinearLayout(
        reg_bases=[[1, 0]],
        lane_bases=[[0, 0], [0, 0], [0, 1], [0, 2], [0, 4]],
        warp_bases=[[2, 0], [4, 0]],
        block_bases=[],
        shape=[8, 8],
    )
)


@gluon.jit(do_not_specialize=["num_queries", "stride", "table_width", "list_width", "piece"])
def score_listed_kernel(
    query_ptr, weight_ptr, pool_ptr, table_ptr, requests_ptr, list_ptr, count_ptr, scores_ptr,
    num_queries, stride, table_width, list_width, piece,
    BLOCK_ENTRIES: gl.constexpr,
):  # fmt: skip
    """Lists [T, list_width] i64 of blocks of 8 entries, of which the first count [T] i64 entries
    are valid."""
    queries = gl.allocate_shared_memory(gl.float8e4nv, [64, 128], QUERY_BYTES)
    ones = gl.allocate_shared_memory(gl.bfloat16, [8, 32], ONES)
    rows = gl.allocate_shared_memory(gl.int32, [MOST_TILES * SIZE], ROWS)
    _store_ones(ones)
    # The first pieces of all lists come first: pieces beyond the end of a list exit at once.
    item = gl.program_id(0)
    query = item % num_queries
    begin = item // num_queries * piece
    end = gl.minimum(gl.load(count_ptr + query).to(gl.int32), begin + piece)
    if begin < end:
        table = table_ptr + gl.load(requests_ptr + query) * table_width
        blocks = list_ptr + query.to(gl.int64) * list_width
        target = scores_ptr + query.to(gl.int64) * stride
        _store_rows(rows, table, blocks + begin // SIZE, end - begin, BLOCK_ENTRIES)
        sources = (query_ptr, weight_ptr, pool_ptr)
        tools = (queries, ones, rows, POSITIVE | (num_queries >> 31))
        _score_listed(sources, target + begin, query, end - begin, tools)


@gluon.jit
def _store_ones(ones):
    """[8, 32]: only the first column of the accumulator belongs to a query."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 2], [2, 16], [4, 1], [1, 0])
    column = gl.arange(0, 8, gl.SliceLayout(1, LAYOUT))
    head = gl.arange(0, 32, gl.SliceLayout(0, LAYOUT))
    is_own = (column == 0)[:, None] & (head >= 0)[None, :]
    ones.store(gl.where(is_own, 1.0, 0.0).to(gl.bfloat16))


@gluon.jit
def _store_rows(rows, table, blocks, count, BLOCK_ENTRIES: gl.constexpr):
    """Pool rows [64 * 8] i32 of the first entries of the listed blocks of ``count`` entries; the
    rest are any valid rows.

    They are looked up once, so that tiles do not wait for the list and the block table.
    """
    place = gl.arange(0, MOST_TILES * SIZE, gl.BlockedLayout([4], [32], [4], [0]))
    entry = gl.load(blocks + place, mask=place * SIZE < count, other=0).to(gl.uint32) * SIZE
    block = gl.load(table + entry // BLOCK_ENTRIES).to(gl.uint32)
    rows.store((block * BLOCK_ENTRIES + entry % BLOCK_ENTRIES).to(gl.int32))


@gluon.jit
def _score_listed(sources, target, query, count, tools):
    """Scores of one query for ``count`` positions of its list."""
    query_ptr, weight_ptr, pool_ptr = sources
    queries, ones, rows, positive = tools
    BLOCK: gl.constexpr = gl.SliceLayout(0, ROW_LAYOUT)
    PLACE: gl.constexpr = gl.SliceLayout(1, SUMS)
    words, exponents = load_rows(pool_ptr, _tile_rows(rows, 0))
    weight = store_queries(query_ptr, weight_ptr, query, query + 1, positive, queries)
    # There are two halves of weights; those of the second query, which does not exist, are 0.
    weight = gl.sum(gl.reshape(weight.to(gl.float32), (2, HEADS)), 0).to(gl.bfloat16)
    weights = gl.convert_layout(weight, gl.SliceLayout(0, DOTS))
    fence_async_shared()
    thread_barrier()
    numbers = queries.slice(0, 32).permute([1, 0])
    place = gl.arange(0, TILE, PLACE)
    spot = (target + place)[:, None] + gl.zeros([64, 8], gl.int32, SUMS)
    for tile in range((count + TILE - 1) // TILE):
        low, high, factor = decode(words, exponents, gl.arange(0, 16, BLOCK) // 4, positive)
        keys = gl.convert_layout(as_operand(in_product_order(low, high)), KEYS, assert_trivial=True)
        words, exponents = load_rows(pool_ptr, _tile_rows(rows, tile + 1))
        zeros = gl.zeros([64, 32], gl.float32, DOTS)
        dots = warpgroup_mma(keys, numbers, zeros, use_acc=False, is_async=True)
        terms = as_terms(warpgroup_mma_wait(0, [dots]), weights)
        zeros = gl.zeros([64, 8], gl.float32, SUMS)
        sums = warpgroup_mma(terms, ones.permute([1, 0]), zeros, use_acc=False, is_async=True)
        sums = warpgroup_mma_wait(0, [sums])
        factor = gl.convert_layout(factor, PLACE)
        values = (sums * factor[:, None]).to(gl.bfloat16)
        is_own = gl.arange(0, 8, gl.SliceLayout(0, SUMS)) == 0
        gl.store(spot, values, mask=(place < count - tile * TILE)[:, None] & is_own[None, :])
        spot += TILE


@gluon.jit
def _tile_rows(rows, tile):
    """Pool rows [64] u32 of the entries of a tile; after the last tile any valid rows."""
    tiles = seen_as(rows, gl.int32, [MOST_TILES, SIZE], ROWS)
    first = tiles.index(tile & (MOST_TILES - 1)).load(gl.SliceLayout(1, BLOCK_ROWS))
    row = first[:, None] + gl.arange(0, SIZE, gl.SliceLayout(0, BLOCK_ROWS))[None, :]
    row = gl.reshape(row.to(gl.uint32), (TILE,))
    return gl.convert_layout(row, gl.SliceLayout(1, ROW_LAYOUT), assert_trivial=True)
