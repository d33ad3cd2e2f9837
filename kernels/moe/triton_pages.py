"""Expert selection and the gather of tokens in one kernel: see ``pages.py``.

The first programs, one warp per token, select experts and allocate rows.  The next few wait for all
of them and list the tiles of experts.  The rest quantize a slice of a token meanwhile, wait for its
rows, and store it there.

Programs only wait for programs with lower ids, so there is no deadlock if programs start in order
of their ids: NVIDIA's GPUs do that, though CUDA does not guarantee it.  With up to 840 tokens of
the released model no order is needed on an H200: fewer programs wait than are resident (32 on each
of 132 SMs), which leaves room for those that select.  Not relying on the order would cost 0.7 to
1.1 us at 1,536 tokens (docs/tuning/layer.md).  Programs exchange only single integers, initially
-1, so relaxed memory order is enough.
"""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer.kernels.gemm.triton_blocks import kept_pairs, quantized, store_codes
from deepinfer.kernels.quant.triton_bits import even_bf16, odd_bf16

from .triton_choice import choose, weigh

LISTED = tl.constexpr(32)  # experts whose tiles one program lists
_AT_ONCE = tl.constexpr(4)


# Sizes that depend on the batch must not cause recompilation.
@triton.jit(do_not_specialize=["num_tokens", "num_pages"])
def page_tokens_kernel(
    logits, bias, ids, weights, last_slot, pages, last_page,
    row_pair, pair_row, tile_expert, used,
    x, values, scales, scale_stride, num_words, row_stride, num_pages, bias_stride,
    num_tokens, num_experts, scaling_factor,
    TOP_K: tl.constexpr, TOP_K_PADDED: tl.constexpr, FIRST: tl.constexpr, REST: tl.constexpr,
    PARTS: tl.constexpr, NORMALIZE: tl.constexpr, IS_FULL: tl.constexpr,
    EXPERTS: tl.constexpr, TILE_ROWS: tl.constexpr, WIDTH: tl.constexpr,
    NUM_BLOCKS: tl.constexpr, BLOCK: tl.constexpr, PATH: tl.constexpr, ORDER: tl.constexpr,
    NATIVE: tl.constexpr,
):  # fmt: skip
    """logits [num_tokens, PARTS, num_experts]; pages [num_experts, num_pages].  One program per
    token, one per LISTED experts, and one per WIDTH blocks of a token; the last tokens first, which
    the router GEMM has just written."""
    SLICES: tl.constexpr = (NUM_BLOCKS + WIDTH - 1) // WIDTH
    program = tl.program_id(0)
    num_lists = tl.cdiv(num_experts, LISTED)
    choice = tl.arange(0, TOP_K_PADDED)
    is_choice = choice < TOP_K
    if program < num_tokens:
        token = num_tokens - 1 - program
        logits += token.to(tl.int64) * PARTS * num_experts
        bias += token.to(tl.int64) * bias_stride
        chosen, place, score, other_score = choose(
            logits, bias, num_experts, TOP_K, TOP_K_PADDED, FIRST, REST, PARTS, True, IS_FULL
        )
        pair = token * TOP_K + place
        row = _take_rows(chosen, is_choice, last_slot, pages, last_page, num_pages, TILE_ROWS)
        tl.store(pair_row + pair, row, mask=is_choice)
        tl.store(row_pair + row, pair, mask=is_choice)
        weight = weigh(
            logits, chosen, score, other_score, num_experts, TOP_K, PARTS, NORMALIZE, True
        )
        tl.store(ids + pair, chosen.to(tl.int64), mask=is_choice)
        tl.store(weights + pair, weight * scaling_factor, mask=is_choice)
    elif program < num_tokens + num_lists:
        _list_tiles(
            program - num_tokens, last_slot, pages, tile_expert, used,
            num_tokens * TOP_K, num_experts, num_pages, EXPERTS, TILE_ROWS,
        )  # fmt: skip
    else:
        index = program - num_tokens - num_lists
        token = num_tokens - 1 - index // SLICES
        block = index % SLICES * WIDTH + tl.arange(0, WIDTH)
        word = kept_pairs(block, BLOCK, ORDER)
        both = tl.load(x + token.to(tl.int64) * row_stride + word, mask=word < num_words, other=0)
        codes, odd_codes, exponent = quantized(even_bf16(both), odd_bf16(both), PATH, ORDER, NATIVE)
        row = _when_known(pair_row + token * TOP_K + choice, is_choice)
        for number in tl.static_range(TOP_K):
            target = tl.max(tl.where(choice == number, row, -1), axis=0)
            store_codes(
                codes, odd_codes, exponent, target + tl.zeros_like(block), block,
                block < NUM_BLOCKS, values, scales, scale_stride, NUM_BLOCKS, BLOCK, PATH, ORDER,
            )  # fmt: skip


@triton.jit
def _take_rows(
    chosen, is_choice, last_slot, pages, last_page, num_pages, TILE_ROWS: tl.constexpr
):  # fmt: skip
    """Allocate a row for each of the selected experts, which are distinct."""
    slot = tl.atomic_add(last_slot + chosen, 1, mask=is_choice, sem="relaxed") + 1
    is_first = is_choice & (slot % TILE_ROWS == 0)
    place = pages + chosen * num_pages + slot // TILE_ROWS
    last = last_page + tl.zeros_like(chosen)
    page = tl.atomic_add(last, 1, mask=is_first, sem="relaxed") + 1
    tl.store(place, page, mask=is_first)
    page = tl.where(is_first, page, _when_known(place, is_choice & ~is_first))
    return page * TILE_ROWS + slot % TILE_ROWS


@triton.jit
def _list_tiles(
    group, last_slot, pages, tile_expert, used, num_pairs, num_experts, num_pages,
    EXPERTS: tl.constexpr, TILE_ROWS: tl.constexpr,
):  # fmt: skip
    """Wait until all pairs have a slot, then write expert and page of the tiles of a group of
    experts."""
    expert = tl.arange(0, EXPERTS)
    place = last_slot + expert
    count = tl.load(place, mask=expert < num_experts, other=-1, volatile=True) + 1
    while tl.sum(count, axis=0) < num_pairs:
        count = tl.load(place, mask=expert < num_experts, other=-1, volatile=True) + 1
    tiles = tl.cdiv(count, TILE_ROWS)
    first = group * LISTED
    if group == 0:
        tl.store(used, tl.sum(tiles, axis=0) * TILE_ROWS)
    own = first + tl.arange(0, LISTED)
    own_count = tl.load(last_slot + own, mask=own < num_experts, other=-1, volatile=True) + 1
    own_tiles = tl.cdiv(own_count, TILE_ROWS)
    tile = tl.sum(tl.where(expert < first, tiles, 0), axis=0)
    tile += tl.cumsum(own_tiles, axis=0) - own_tiles
    for begin in range(0, tl.max(own_tiles, axis=0), _AT_ONCE):
        number = begin + tl.arange(0, _AT_ONCE)[None, :]
        inside = number < own_tiles[:, None]
        page = _when_known(pages + own[:, None] * num_pages + number, inside)
        tl.store(tile_expert + tile[:, None] + number, page * 65536 + own[:, None], mask=inside)


@triton.jit
def _when_known(place, is_asked):
    """Spin until other programs have stored these integers, i.e. none is -1; returns them."""
    number = tl.load(place, mask=is_asked, other=0, volatile=True)
    while tl.min(number) < 0:
        number = tl.load(place, mask=is_asked, other=0, volatile=True)
    return number
