"""Index scores for Hopper in Gluon of the entries in listed blocks only, query by query.

Queries of one request seldom keep the same blocks, so that little of what they share is left: each
reads its own keys.  Products and roundings are those of ``score_gluon_kernel``.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from deepinfer.kernels.gluon_names import thread_barrier

from .gluon_kernel import (
    DOTS,
    ONES,
    QUERY_BYTES,
    ROW_LAYOUT,
    SUMS,
    TILE,
    as_operand,
    decode,
    head_sums,
    in_product_order,
    load_rows,
    store_ones,
    store_queries,
)


@gluon.jit(
    do_not_specialize=[
        "num_queries", "num_entries", "stride", "table_width", "list_width", "chunks",
    ]
)  # fmt: skip
def score_listed_kernel(
    query_ptr, weight_ptr, pool_ptr, table_ptr, requests_ptr, visible_ptr, list_ptr, count_ptr,
    scores_ptr, num_queries, num_entries, stride, table_width, list_width, chunks,
    BLOCK_ENTRIES: gl.constexpr, SIZE: gl.constexpr, CHUNK: gl.constexpr,
):  # fmt: skip
    """Lists [T, list_width] i32 of count [T] i32 blocks of SIZE entries each."""
    queries = gl.allocate_shared_memory(gl.float8e4nv, [1, 64, 128], QUERY_BYTES)
    ones = gl.allocate_shared_memory(gl.bfloat16, [1, 8, 64], ONES)
    store_ones(ones, 1)
    # First parts of all lists first: those behind their ends come last and cost next to nothing.
    for item in range(gl.program_id(0), num_queries * chunks, gl.num_programs(0)):
        query = item % num_queries
        begin = item // num_queries * (CHUNK * TILE)
        end = gl.minimum(gl.load(count_ptr + query) * SIZE, begin + CHUNK * TILE)
        if begin < end:
            visible = gl.minimum(gl.load(visible_ptr + query), num_entries).to(gl.int32)
            table = table_ptr + gl.load(requests_ptr + query) * table_width
            blocks = list_ptr + query.to(gl.int64) * list_width
            sources = (query_ptr, weight_ptr, pool_ptr, table, blocks)
            target = scores_ptr + query.to(gl.int64) * stride
            _score_listed(
                sources, target, (query, begin, end, visible), queries, ones, BLOCK_ENTRIES, SIZE
            )


@gluon.jit
def _score_listed(
    sources, target, sizes, queries, ones, BLOCK_ENTRIES: gl.constexpr, SIZE: gl.constexpr
):
    """Scores of one query for the places from begin to end of its list."""
    query_ptr, weight_ptr, pool_ptr, table, blocks = sources
    query, begin, end, visible = sizes
    BLOCK: gl.constexpr = gl.SliceLayout(0, ROW_LAYOUT)
    ROWS: gl.constexpr = gl.SliceLayout(1, ROW_LAYOUT)
    entry = _listed_entries(blocks, begin, end, SIZE, ROWS)
    words, exponents = load_rows(pool_ptr, table, entry, entry < visible, BLOCK_ENTRIES)
    thread_barrier()
    weight = store_queries(query_ptr, weight_ptr, query, query + 1, queries.index(0))
    weights = (gl.convert_layout(weight, gl.SliceLayout(0, DOTS)),)
    fence_async_shared()
    thread_barrier()
    for first in range(begin, end, TILE):
        low, high, factor = decode(words, exponents, gl.arange(0, 16, BLOCK) // 4)
        keys = as_operand(in_product_order(low, high))
        entry = _listed_entries(blocks, first + TILE, end, SIZE, ROWS)
        words, exponents = load_rows(pool_ptr, table, entry, entry < visible, BLOCK_ENTRIES)
        sums = head_sums(keys, queries, ones, weights, 1)
        factor = gl.convert_layout(factor, gl.SliceLayout(1, SUMS))
        values = (sums * factor[:, None]).to(gl.bfloat16)
        place = _listed_entries(blocks, first, end, SIZE, gl.SliceLayout(1, SUMS))
        is_own = gl.arange(0, 8, gl.SliceLayout(0, SUMS)) == 0
        mask = (place < visible)[:, None] & is_own[None, :]
        gl.store(target + place[:, None] + gl.zeros([64, 8], gl.int32, SUMS), values, mask=mask)


@gluon.jit
def _listed_entries(blocks, first, end, SIZE: gl.constexpr, LAYOUT: gl.constexpr):
    """Entries at 64 places of a list of blocks, [64] i32; behind its end the largest number."""
    place = first + gl.arange(0, TILE, LAYOUT)
    block = gl.load(blocks + place // SIZE, mask=place < end, other=0)
    return gl.where(place < end, block * SIZE + place % SIZE, 0x7FFFFFFF)
