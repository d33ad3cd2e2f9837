"""Index scores for Hopper in Gluon: FP8 MMAs of 64 entries by the 64 heads of two queries.

FP4 values are representable in E4M3 if the scales of a row's four blocks are relative to its
largest: exact if they span at most 2**11, blocks with smaller scales become 0.  The factor is a
power of two per row; it is applied to the head weights and to the final sum, where it changes no
rounding.

A thread owns whole blocks of 32 values, so K is permuted relative to memory: element
32 j + 8 s + 4 h + b of a row is element 32 s + 16 h + 4 j + b of K.
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

HEADS = gl.constexpr(32)
TILE = gl.constexpr(64)
ROW_WORDS = gl.constexpr(17)
POSITIVE = gl.constexpr(0x40404040)
DOTS = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 32]))
KEYS = gl.constexpr(gl.DotOperandLayout(0, DOTS.value, 4))
# Sums over heads are MMAs, too, with a matrix of ones where a column is a head of the query.
SUMS = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 8, 16]))
TERMS = gl.constexpr(gl.DotOperandLayout(0, SUMS.value, 2))
WEIGHTS = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))
ONES = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))
QUERY_BYTES = gl.constexpr(gl.NVMMASharedLayout(128, 8, 2))
QUERY_WORDS = gl.constexpr(gl.NVMMASharedLayout(128, 32, 2))
# [64 rows, 16 words of 8 values]: a thread has the four words of one block of two rows.
ROW_LAYOUT = gl.constexpr(
    gl.DistributedLinearLayout(
        reg_bases=[[0, 1], [0, 2], [8, 0]],
        lane_bases=[[0, 4], [0, 8], [1, 0], [2, 0], [4, 0]],
        warp_bases=[[16, 0], [32, 0]],
        block_bases=[],
        shape=[64, 16],
    )
)
# [64 rows, 4 words s, 2 halves h, 4 blocks j]
WORD_LAYOUT = gl.constexpr(
    gl.DistributedLinearLayout(
        reg_bases=[[0, 8], [8, 0], [0, 16], [0, 4]],
        lane_bases=[[0, 1], [0, 2], [1, 0], [2, 0], [4, 0]],
        warp_bases=[[16, 0], [32, 0]],
        block_bases=[],
        shape=[64, 32],
    )
)


@gluon.jit
def decode(words, exponents, block, positive):
    """Decode words of 8 E2M1 [R, 16] i32 with the row's four block exponents [R] i32.

    Returns the first and the last four values of each word as E4M3 bytes [R, 16] i32 with the
    opposite sign, which is cheaper and cancels in the product of queries and keys, and the scale of
    the row as fp32 [R].  ``positive`` is POSITIVE as a runtime value: the compiler would reload the
    constant each time.
    """
    own = (exponents[:, None] >> (block * 8)[None, :]) & 0xFF
    largest = gl.max(own, 1)
    # The tables t0, t1 hold magnitudes times 2**6.  With bit 3 of its selector, prmt replicates a
    # byte's sign bit, which is 0 here: bit 6 of POSITIVE remains set for positive values only.
    low, high = gl.inline_asm_elementwise(
        """
        {
        .reg .b32 t0, t1, m, x, n;
        .reg .pred p;
        mad.lo.u32 t1, $3, 0xF7F7F7F8, 0x7C787470;
        mad.lo.u32 t0, $3, 0xF7F7F800, 0x6C686000;
        setp.gt.u32 p, $3, 11;
        selp.b32 t0, 0, t0, p;
        selp.b32 t1, 0, t1, p;
        and.b32 m, $2, 0x77777777;
        prmt.b32 n, t0, t1, m;
        prmt.b32 x, $4, $4, $2;
        mad.lo.u32 $0, x, 2, n;
        shr.b32 m, m, 16;
        prmt.b32 n, t0, t1, m;
        shr.b32 x, $2, 16;
        prmt.b32 x, $4, $4, x;
        mad.lo.u32 $1, x, 2, n;
        }
        """,
        "=&r,=&r,r,r,r",
        [words, largest[:, None] - own, positive],
        dtype=(gl.int32, gl.int32),
        is_pure=True,
        pack=1,
    )
    return low, high, (gl.maximum(largest - 6, 1) << 23).to(gl.float32, bitcast=True)


@gluon.jit
def in_product_order(low, high):
    """[64, 16] words (4 j + s) of halves h -> [64, 32] words (8 s + 4 h + j)."""
    words = gl.reshape(gl.join(low, high), (64, 4, 4, 2))
    return gl.reshape(gl.permute(words, (0, 2, 3, 1)), (64, 32))


@gluon.jit
def store_queries(query_ptr, weight_ptr, query, last, positive, target):
    """Decode the heads of two queries into shared memory; returns their weights, [64] bf16."""
    row = gl.arange(0, 64, gl.SliceLayout(1, ROW_LAYOUT))
    word = gl.arange(0, 16, gl.SliceLayout(0, ROW_LAYOUT))
    place = query.to(gl.int64) * HEADS + row
    is_row = query + row // HEADS < last
    words = gl.load(
        query_ptr + (place * ROW_WORDS)[:, None] + word[None, :], mask=is_row[:, None], other=0
    )
    exponents = gl.load(query_ptr + place * ROW_WORDS + 16, mask=is_row, other=0)
    low, high, factor = decode(words, exponents, word // 4, positive)
    pairs = in_product_order(low, high)
    seen_as(target, gl.int32, [64, 32], QUERY_WORDS).store(
        gl.convert_layout(pairs, WORD_LAYOUT, assert_trivial=True)
    )
    weight = gl.load(weight_ptr + place, mask=is_row, other=0.0).to(gl.float32) * factor
    return weight.to(gl.bfloat16)


@gluon.jit
def as_terms(dots, weights):
    """w * relu(dot) of [64, 64] f32 and [64] bf16, each step rounded to bf16, as left MMA
    operand."""
    terms = gl.inline_asm_elementwise(
        """
        {
        .reg .b32 x;
        cvt.rn.relu.bf16x2.f32 x, $2, $1;
        mul.rn.bf16x2 $0, x, $3;
        }
        """,
        "=r,r,r,r",
        [dots, weights[None, :]],
        dtype=gl.bfloat16,
        is_pure=True,
        pack=2,
    )
    return gl.convert_layout(terms, TERMS, assert_trivial=True)


@gluon.jit
def store_ones(ones, PAIRS: gl.constexpr):
    """[PAIRS, 8, 64]: 1 where a column of a pair's terms belongs to the query of the row."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 4], [2, 16], [4, 1], [1, 0])
    query = gl.arange(0, 8, gl.SliceLayout(1, LAYOUT))
    column = gl.arange(0, 64, gl.SliceLayout(0, LAYOUT))
    for pair in gl.static_range(PAIRS):
        is_own = query[:, None] == (2 * pair + column // HEADS)[None, :]
        ones.index(pair).store(gl.where(is_own, 1.0, 0.0).to(gl.bfloat16))


@gluon.jit
def _entry_rows(table, first, end, BLOCK_ENTRIES: gl.constexpr):
    """Pool rows [64] u32 of 64 entries; from ``end`` on any valid row."""
    place = gl.arange(0, TILE, gl.SliceLayout(1, ROW_LAYOUT))
    if BLOCK_ENTRIES % TILE == 0:  # a tile is in one block
        block = gl.load(table + gl.minimum(first, end - 1).to(gl.uint32) // BLOCK_ENTRIES)
        return (block.to(gl.int32) * BLOCK_ENTRIES + first % BLOCK_ENTRIES + place).to(gl.uint32)
    entry = gl.minimum(first + place, end - 1).to(gl.uint32)
    block = gl.load(table + entry // BLOCK_ENTRIES).to(gl.uint32)
    return block * BLOCK_ENTRIES + entry % BLOCK_ENTRIES


@gluon.jit
def load_rows(pool_ptr, row):
    """Load the packed rows with indices [64] u32: words [64, 16] i32, exponents [64] i32."""
    # Hides from Triton 3.6 that blocks are aligned: it would infer 16-byte alignment for rows.
    row = gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [row], gl.uint32, True, 1)
    word = gl.arange(0, 16, gl.SliceLayout(0, ROW_LAYOUT))
    row = row.to(gl.int64) * ROW_WORDS
    words = gl.load(pool_ptr + row[:, None] + word[None, :])
    return words, gl.load(pool_ptr + row + 16)


@gluon.jit(
    do_not_specialize=["num_queries", "num_entries", "stride", "table_width", "pieces", "piece"]
)
def score_gluon_kernel(
    query_ptr, weight_ptr, pool_ptr, table_ptr, requests_ptr, visible_ptr, groups_ptr, scores_ptr,
    num_queries, num_entries, stride, table_width, pieces, piece,
    BLOCK_ENTRIES: gl.constexpr, PAIRS: gl.constexpr,
):  # fmt: skip
    queries = gl.allocate_shared_memory(gl.float8e4nv, [PAIRS, 64, 128], QUERY_BYTES)
    ones = gl.allocate_shared_memory(gl.bfloat16, [PAIRS, 8, 64], ONES)
    # Reloaded for each tile to save registers.
    weights = gl.allocate_shared_memory(gl.bfloat16, [PAIRS, 64], WEIGHTS)
    store_ones(ones, PAIRS)
    tools = (queries, ones, weights, POSITIVE | (num_queries >> 31))
    num_groups = gl.load(groups_ptr)
    for item in range(gl.program_id(0), num_groups * pieces, gl.num_programs(0)):
        group, begin = item // pieces, item % pieces * piece
        query = gl.load(groups_ptr + 1 + group)
        last = num_queries
        if group + 1 < num_groups:
            last = gl.load(groups_ptr + 2 + group)
        place = gl.arange(0, 8, gl.SliceLayout(1, ROW_LAYOUT))
        seen = gl.load(visible_ptr + query + place, mask=query + place < last, other=0)
        end = gl.minimum(gl.minimum(gl.max(seen, 0), num_entries).to(gl.int32), begin + piece)
        if begin < end:
            table = table_ptr + gl.load(requests_ptr + query) * table_width
            sources = (query_ptr, weight_ptr, pool_ptr, table, scores_ptr)
            sizes = (query, last, begin, end, num_entries, stride)
            if last - query > 2:
                _score_tiles(sources, sizes, tools, BLOCK_ENTRIES, PAIRS)
            else:
                _score_tiles(sources, sizes, tools, BLOCK_ENTRIES, 1)


@gluon.jit
def _score_tiles(sources, sizes, tools, BLOCK_ENTRIES: gl.constexpr, PAIRS: gl.constexpr):
    """Scores of entries ``begin`` to ``end`` for up to 2 PAIRS queries of one request."""
    query_ptr, weight_ptr, pool_ptr, table, scores_ptr = sources
    query, last, begin, end, num_entries, stride = sizes
    queries, ones, weights, positive = tools
    own = query + gl.arange(0, 8, gl.SliceLayout(0, SUMS))
    BLOCK: gl.constexpr = gl.SliceLayout(0, ROW_LAYOUT)
    words, exponents = load_rows(pool_ptr, _entry_rows(table, begin, end, BLOCK_ENTRIES))
    row = _entry_rows(table, begin + TILE, end, BLOCK_ENTRIES)
    thread_barrier()
    for pair in gl.static_range(PAIRS):
        weight = store_queries(
            query_ptr, weight_ptr, query + 2 * pair, last, positive, queries.index(pair)
        )
        weights.index(pair).store(weight)
    fence_async_shared()
    thread_barrier()
    for first in range(begin, end, TILE):
        low, high, factor = decode(words, exponents, gl.arange(0, 16, BLOCK) // 4, positive)
        keys = as_operand(in_product_order(low, high))
        # The row indices were prefetched one tile ago.
        words, exponents = load_rows(pool_ptr, row)
        row = _entry_rows(table, first + 2 * TILE, end, BLOCK_ENTRIES)
        sums = _head_sums(keys, queries, ones, weights, PAIRS)
        entry = first + gl.arange(0, TILE, gl.SliceLayout(1, SUMS))
        scores = sums * gl.convert_layout(factor, gl.SliceLayout(1, SUMS))[:, None]
        is_entry = (entry < num_entries)[:, None] & (own < last)[None, :]
        place = own.to(gl.int64)[None, :] * stride + entry[:, None]
        gl.store(scores_ptr + place, scores.to(gl.bfloat16), mask=is_entry)


@gluon.jit
def _head_sums(keys, queries, ones, weights, PAIRS: gl.constexpr):
    """Sums over heads of w * relu(dot) of 64 keys with up to 2 PAIRS queries, [64, 8] f32."""
    # Two MMAs in flight: registers do not suffice for a third.
    dots: gl.tuple = ()
    for pair in gl.static_range(PAIRS):
        if pair < 2:
            dots = dots + (_dots(keys, queries.index(pair)),)
    sums = gl.zeros([64, 8], gl.float32, SUMS)
    for pair in gl.static_range(PAIRS):
        # After the MMA that is waited for, one other was issued, or one and the previous sum.
        products = warpgroup_mma_wait((PAIRS > 1) + ((pair == 1) & (PAIRS == 3)), [dots[pair]])
        terms = as_terms(products, weights.index(pair).load(gl.SliceLayout(0, DOTS)))
        sums = warpgroup_mma(terms, ones.index(pair).permute([1, 0]), sums, is_async=True)
        if pair + 2 < PAIRS:
            dots = dots + (_dots(keys, queries.index(pair + 2)),)
    return warpgroup_mma_wait(0, [sums])


@gluon.jit
def _dots(keys, numbers):
    zeros = gl.zeros([64, 64], gl.float32, DOTS)
    return warpgroup_mma(keys, numbers.permute([1, 0]), zeros, use_acc=False, is_async=True)


@gluon.jit
def as_operand(words):
    """[64, 32] i32 -> [64, 128] E4M3 as left MMA operand, in the same registers."""
    words = gl.reshape(gl.join(words, words), (64, 64))
    words = gl.reshape(gl.join(words, words), (64, 128))
    numbers = gl.inline_asm_elementwise(
        "mov.b32 $0, $1;", "=r,r,r,r,r", [words], dtype=gl.int8, is_pure=True, pack=4
    )
    return gl.convert_layout(numbers.to(gl.float8e4nv, bitcast=True), KEYS, assert_trivial=True)
