"""Index scores for Hopper in Gluon of the entries in listed blocks only, query by query.

Queries of one request seldom list the same blocks, so that little of what they share is left: each
reads its own keys.  Products and roundings are those of ``score_gluon_kernel``.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from deepinfer.kernels.gluon_names import thread_barrier

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


@gluon.jit(do_not_specialize=["num_queries", "stride", "table_width", "list_width", "piece"])
def score_listed_kernel(
    query_ptr, weight_ptr, pool_ptr, table_ptr, requests_ptr, list_ptr, count_ptr, scores_ptr,
    num_queries, stride, table_width, list_width, piece,
    BLOCK_ENTRIES: gl.constexpr, SIZE: gl.constexpr,
):  # fmt: skip
    """Lists [T, list_width] i64 of blocks of SIZE entries, of which count [T] i64 are there."""
    queries = gl.allocate_shared_memory(gl.float8e4nv, [64, 128], QUERY_BYTES)
    ones = gl.allocate_shared_memory(gl.bfloat16, [8, 32], ONES)
    _store_ones(ones)
    # First pieces of all lists first: those behind their ends come last and cost next to nothing.
    item = gl.program_id(0)
    query = item % num_queries
    begin = item // num_queries * piece
    end = gl.minimum(gl.load(count_ptr + query).to(gl.int32), begin + piece)
    if begin < end:
        table = table_ptr + gl.load(requests_ptr + query) * table_width
        blocks = list_ptr + query.to(gl.int64) * list_width
        target = scores_ptr + query.to(gl.int64) * stride
        sources = (query_ptr, weight_ptr, pool_ptr, table, blocks)
        tools = (queries, ones, POSITIVE | (num_queries >> 31))
        _score_listed(sources, target, (query, begin, end), tools, BLOCK_ENTRIES, SIZE)


@gluon.jit
def _store_ones(ones):
    """[8, 32]: only the first column of sums is a query's."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 2], [2, 16], [4, 1], [1, 0])
    column = gl.arange(0, 8, gl.SliceLayout(1, LAYOUT))
    head = gl.arange(0, 32, gl.SliceLayout(0, LAYOUT))
    is_own = (column == 0)[:, None] & (head >= 0)[None, :]
    ones.store(gl.where(is_own, 1.0, 0.0).to(gl.bfloat16))


@gluon.jit
def _score_listed(sources, target, sizes, tools, BLOCK_ENTRIES: gl.constexpr, SIZE: gl.constexpr):
    """Scores of one query for the places from begin to end of its list."""
    query_ptr, weight_ptr, pool_ptr, table, blocks = sources
    query, begin, end = sizes
    queries, ones, positive = tools
    BLOCK: gl.constexpr = gl.SliceLayout(0, ROW_LAYOUT)
    PLACE: gl.constexpr = gl.SliceLayout(1, SUMS)
    words, exponents = load_rows(
        pool_ptr, _listed_rows(table, blocks, begin, end, BLOCK_ENTRIES, SIZE)
    )
    row = _listed_rows(table, blocks, begin + TILE, end, BLOCK_ENTRIES, SIZE)
    thread_barrier()
    weight = store_queries(query_ptr, weight_ptr, query, query + 1, positive, queries)
    # Both halves have weights; those of the second query, which is not there, are 0.
    weight = gl.sum(gl.reshape(weight.to(gl.float32), (2, HEADS)), 0).to(gl.bfloat16)
    weights = gl.convert_layout(weight, gl.SliceLayout(0, DOTS))
    fence_async_shared()
    thread_barrier()
    numbers = queries.slice(0, 32).permute([1, 0])
    place = gl.arange(0, TILE, PLACE)
    spot = (target + begin + place)[:, None] + gl.zeros([64, 8], gl.int32, SUMS)
    for first in range(begin, end, TILE):
        low, high, factor = decode(words, exponents, gl.arange(0, 16, BLOCK) // 4, positive)
        keys = gl.convert_layout(as_operand(in_product_order(low, high)), KEYS, assert_trivial=True)
        # Which rows come next was asked for a tile ago.
        words, exponents = load_rows(pool_ptr, row)
        row = _listed_rows(table, blocks, first + 2 * TILE, end, BLOCK_ENTRIES, SIZE)
        zeros = gl.zeros([64, 32], gl.float32, DOTS)
        dots = warpgroup_mma(keys, numbers, zeros, use_acc=False, is_async=True)
        terms = as_terms(warpgroup_mma_wait(0, [dots]), weights)
        zeros = gl.zeros([64, 8], gl.float32, SUMS)
        sums = warpgroup_mma(terms, ones.permute([1, 0]), zeros, use_acc=False, is_async=True)
        sums = warpgroup_mma_wait(0, [sums])
        factor = gl.convert_layout(factor, PLACE)
        values = (sums * factor[:, None]).to(gl.bfloat16)
        is_own = gl.arange(0, 8, gl.SliceLayout(0, SUMS)) == 0
        gl.store(spot, values, mask=(place < end - first)[:, None] & is_own[None, :])
        spot += TILE


@gluon.jit
def _listed_rows(table, blocks, first, end, BLOCK_ENTRIES: gl.constexpr, SIZE: gl.constexpr):
    """Rows of the pool, [64] u32, of the entries at 64 places of a list; any from ``end`` on."""
    place = gl.minimum(first + gl.arange(0, TILE, gl.SliceLayout(1, ROW_LAYOUT)), end - 1)
    place = place.to(gl.uint32)
    entry = gl.load(blocks + place // SIZE).to(gl.uint32) * SIZE + place % SIZE
    block = gl.load(table + entry // BLOCK_ENTRIES).to(gl.uint32)
    return block * BLOCK_ENTRIES + entry % BLOCK_ENTRIES
