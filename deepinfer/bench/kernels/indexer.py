"""Index scores, candidate blocks, top-k and row look-up, at the model's shapes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from deepinfer.kernels.indexer import (
    candidate_blocks,
    listed_index_scores,
    num_listed_places,
    paged_index_scores,
    pool_rows,
    select_topk,
)
from deepinfer.kernels.quant import pack_index_rows

from .case import KernelCase

_HEADS, _WIDTH, _BLOCK = 32, 128, 64
# Entries of a candidate block, and blocks of a list.
_LISTED, _BLOCKS = 8, 2048


def paged_case(requests: int, queries: int, entries: int) -> dict[str, Any]:
    """``queries`` consecutive queries per request; blocks at random places in the pool."""
    tokens, blocks = requests * queries, entries // _BLOCK
    few = pack_index_rows(torch.randn(4096, _WIDTH, device="cuda"))
    some = torch.randint(0, 4096, (requests * blocks, _BLOCK), device="cuda")
    table = torch.randperm(requests * blocks, device="cuda").view(requests, blocks)
    return {
        "query_rows": pack_index_rows(torch.randn(tokens, _HEADS, _WIDTH, device="cuda")),
        "head_weights": torch.randn(tokens, _HEADS, device="cuda").bfloat16(),
        "pool": few[some],
        "block_table": table,
        "request_rows": torch.arange(requests, device="cuda").repeat_interleave(queries),
        "num_visible": torch.full((tokens,), entries, device="cuda"),
        "num_entries": entries,
    }


def listed_case(requests: int, queries: int, entries: int, num_blocks: int) -> dict[str, Any]:
    """The same, with ``num_blocks`` candidate blocks for each query."""
    operands = paged_case(requests, queries, entries)
    visible = operands.pop("num_visible")
    chances = torch.rand(len(visible), operands.pop("num_entries") // _LISTED, device="cuda")
    # Every list has the block with the newest entry, as with candidate_blocks.
    chances[:, -1] = 1
    blocks = chances.topk(num_blocks).indices.sort(-1).values
    places = num_listed_places(blocks, visible, _LISTED)
    return {**operands, "blocks": blocks, "num_places": places, "block_size": _LISTED}


def cases() -> Iterator[KernelCase]:
    for requests, queries, entries in (
        (256, 6, 65_536),
        (256, 1, 65_536),
        (8, 6, 65_536),
        (1, 1024, 65_536),
    ):
        tokens = requests * queries
        yield KernelCase(
            f"index scores, {requests} x {queries} x {entries}",
            partial(paged_index_scores, **paged_case(requests, queries, entries)),
            2 * tokens * entries * _HEADS * _WIDTH,
            requests * entries * 68 + 2 * tokens * entries,
        )
    for rows, entries in ((256, 131_072), (1536, 65_536), (8, 131_072), (8, 1 << 20)):
        scores = torch.randn(rows, entries, device="cuda").bfloat16()
        visible = torch.full((rows,), entries, device="cuda")
        name = f"top-512 of {entries}, {rows} rows"
        yield KernelCase(name, partial(select_topk, scores, visible, 512), 0, 2 * rows * entries)
    yield from (listed(*sizes) for sizes in ((256, 6), (256, 1), (8, 6), (1, 1024)))
    yield from (candidates(*sizes) for sizes in ((256, 131_072), (1536, 65_536), (8, 131_072)))
    yield from (picked(*sizes) for sizes in ((256, 6), (256, 1), (8, 6)))


def listed(
    requests: int, queries: int, entries: int = 65_536, num_blocks: int = _BLOCKS
) -> KernelCase:
    """Entries that are in no list of a request's queries need not be read."""
    tokens, places = requests * queries, num_blocks * _LISTED
    touched = entries * (1 - (1 - places / entries) ** queries)
    return KernelCase(
        f"listed scores, {requests} x {queries} x {places} of {entries}",
        partial(listed_index_scores, **listed_case(requests, queries, entries, num_blocks)),
        2 * tokens * places * _HEADS * _WIDTH,
        requests * touched * 68 + tokens * (2 * places + 8 * num_blocks),
    )


def candidates(rows: int, entries: int, num_blocks: int = _BLOCKS) -> KernelCase:
    scores = torch.randn(rows, entries, device="cuda").bfloat16()
    visible = torch.full((rows,), entries, device="cuda")
    call = partial(candidate_blocks, scores, visible, _LISTED, num_blocks)
    name = f"{num_blocks} candidate blocks of {entries}, {rows} rows"
    return KernelCase(name, call, 0, rows * (2 * entries + 8 * num_blocks))


def picked(requests: int, queries: int, entries: int = 65_536, picks: int = 512) -> KernelCase:
    """The rows of selected entries in the pool."""
    tokens, blocks = requests * queries, entries // _BLOCK
    operands = (
        torch.randint(0, entries, (tokens, picks), device="cuda").sort(1).values,
        torch.arange(requests, device="cuda").repeat_interleave(queries),
        torch.randperm(requests * blocks, device="cuda").view(requests, blocks),
    )
    name = f"rows of {picks} picks, {requests} x {queries}"
    return KernelCase(name, partial(pool_rows, *operands, _BLOCK), 0, 16 * tokens * picks)
