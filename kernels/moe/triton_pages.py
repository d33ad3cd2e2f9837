"""The choice of experts and the placing of tokens in one kernel: see ``pages.py``.

The first programs, a warp for each token, choose, and take rows.  Some wait until all have chosen
and list the tiles of experts.  The others have quantised their piece of a token meanwhile, wait for
its rows, and store it there.

Nobody waits for a program that comes later, so all get on if programs start in the order of their
number: NVIDIA's GPUs do that, though CUDA does not promise it.  Up to 840 tokens of the released
model no order is needed on an H200: those that wait are fewer than run at once (32 on each of 132
multiprocessors), and leave room for those that choose.  Without such a promise 1,536 tokens would
take 0.7 to 1.1 us more (docs/tuning/layer.md).  Nothing but single numbers, at first -1, passes
from one program to another, so that no order of memory needs to be kept.
"""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer.kernels.gemm.triton_blocks import kept_pairs, quantized, store_codes
from deepinfer.kernels.quant.triton_bits import even_bf16, odd_bf16

from .triton_choice import choose, weigh

LISTED = tl.constexpr(32)  # experts whose tiles a program lists, and so many of their pages
_AT_ONCE = tl.constexpr(4)


# Sizes that follow the batch must not make new variants of the kernel.
@triton.jit(do_not_specialize=["num_tokens", "num_pages"])
def page_tokens_kernel(
    logits, bias, ids, weights, last_slot, pages, last_page,
    row_pair, pair_row, tile_expert, used,
    x, values, scales, scale_stride, num_words, row_stride, num_pages, bias_stride,
    num_tokens, num_experts, scaling_factor,
    CHOSEN: tl.constexpr, CHOSEN_PADDED: tl.constexpr, FIRST: tl.constexpr, REST: tl.constexpr,
    PARTS: tl.constexpr, NORMALIZE: tl.constexpr, IS_FULL: tl.constexpr,
    EXPERTS: tl.constexpr, TILE_ROWS: tl.constexpr, WIDTH: tl.constexpr,
    NUM_BLOCKS: tl.constexpr, BLOCK: tl.constexpr, PATH: tl.constexpr, ORDER: tl.constexpr,
    NATIVE: tl.constexpr,
):  # fmt: skip
    """logits [num_tokens, PARTS, num_experts]; pages [num_experts, num_pages].  A program for each
    token, one for some experts, and one for each WIDTH blocks of a token; the last tokens first, as
    the product has just written them."""
    PIECES: tl.constexpr = (NUM_BLOCKS + WIDTH - 1) // WIDTH
    program = tl.program_id(0)
    num_lists = tl.cdiv(num_experts, LISTED)
    choice = tl.arange(0, CHOSEN_PADDED)
    is_choice = choice < CHOSEN
    if program < num_tokens:
        token = num_tokens - 1 - program
        logits += token.to(tl.int64) * PARTS * num_experts
        bias += token.to(tl.int64) * bias_stride
        chosen, place, score, other_score = choose(
            logits, bias, num_experts, CHOSEN, CHOSEN_PADDED, FIRST, REST, PARTS, True, IS_FULL
        )
        pair = token * CHOSEN + place
        row = _take_rows(chosen, is_choice, last_slot, pages, last_page, num_pages, TILE_ROWS)
        tl.store(pair_row + pair, row, mask=is_choice)
        tl.store(row_pair + row, pair, mask=is_choice)
        weight = weigh(
            logits, chosen, score, other_score, num_experts, CHOSEN, PARTS, NORMALIZE, True
        )
        tl.store(ids + pair, chosen.to(tl.int64), mask=is_choice)
        tl.store(weights + pair, weight * scaling_factor, mask=is_choice)
    elif program < num_tokens + num_lists:
        _list_tiles(
            program - num_tokens, last_slot, pages, tile_expert, used,
            num_tokens * CHOSEN, num_experts, num_pages, EXPERTS, TILE_ROWS,
        )  # fmt: skip
    else:
        piece = program - num_tokens - num_lists
        token = num_tokens - 1 - piece // PIECES
        block = piece % PIECES * WIDTH + tl.arange(0, WIDTH)
        word = kept_pairs(block, BLOCK, ORDER)
        both = tl.load(x + token.to(tl.int64) * row_stride + word, mask=word < num_words, other=0)
        codes, odd_codes, exponent = quantized(even_bf16(both), odd_bf16(both), PATH, ORDER, NATIVE)
        row = _when_known(pair_row + token * CHOSEN + choice, is_choice)
        for number in tl.static_range(CHOSEN):
            target = tl.max(tl.where(choice == number, row, -1), axis=0)
            store_codes(
                codes, odd_codes, exponent, target + tl.zeros_like(block), block,
                block < NUM_BLOCKS, values, scales, scale_stride, NUM_BLOCKS, BLOCK, PATH, ORDER,
            )  # fmt: skip


@triton.jit
def _take_rows(
    chosen, is_choice, last_slot, pages, last_page, num_pages, TILE_ROWS: tl.constexpr
):  # fmt: skip
    """A row for each of the chosen, which are different."""
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
    """Experts and pages of the tiles of a group of experts, once all pairs have a slot."""
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
    """Numbers that others store, once none of them is -1 any more."""
    number = tl.load(place, mask=is_asked, other=0, volatile=True)
    while tl.min(number) < 0:
        number = tl.load(place, mask=is_asked, other=0, volatile=True)
    return number
