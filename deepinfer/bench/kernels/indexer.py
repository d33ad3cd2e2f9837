"""Index scores, candidate blocks, top-k, masks and sampling at the model's shapes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from deepinfer.kernels.indexer import (
    candidate_blocks,
    listed_index_scores,
    num_listed_places,
    paged_index_scores,
    select_topk,
)
from deepinfer.kernels.quant import pack_index_rows
from deepinfer.kernels.sampling import mask_logits, penalize_logits, sample

from .case import KernelCase

_HEADS, _WIDTH, _BLOCK = 32, 128, 64
_VOCABULARY = 129_280
# Entries of a candidate block, and blocks of a list.
_LISTED, _BLOCKS = 8, 2048


def paged_case(requests: int, queries: int, entries: int) -> dict[str, Any]:
    """``queries`` neighbours of each request; blocks lie anywhere in the pool."""
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
    """The same, where each query lists ``num_blocks`` candidate blocks of its own."""
    operands = paged_case(requests, queries, entries)
    visible = operands.pop("num_visible")
    chances = torch.rand(len(visible), operands.pop("num_entries") // _LISTED, device="cuda")
    # The block with the newest entry is in every list, as candidate_blocks takes it.
    chances[:, -1] = 1
    blocks = chances.topk(num_blocks).indices.sort(-1).values
    places = num_listed_places(blocks, visible, _LISTED)
    return {**operands, "blocks": blocks, "num_places": places, "block_size": _LISTED}


def mask_case(rows: int, vocabulary: int) -> tuple[Tensor, Tensor, Tensor]:
    """Half of all tokens of each row are allowed."""
    logits = torch.randn(rows, vocabulary, device="cuda")
    words = (rows, -(-vocabulary // 32))
    masks = torch.randint(-(2**31), 2**31, words, dtype=torch.int32, device="cuda")
    return logits, masks, torch.arange(rows, device="cuda")


def sampling_case(
    rows: int, temperature: float, top_p: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    logits = torch.randn(rows, _VOCABULARY, device="cuda") * 3
    floats = [torch.full((rows,), value, device="cuda") for value in (temperature, top_p, 0.0)]
    seeds = torch.randint(-(2**62), 2**62, (rows,), device="cuda")
    no_limit = torch.zeros(rows, dtype=torch.int64, device="cuda")
    positions = torch.arange(rows, device="cuda")
    return logits, floats[0], floats[1], no_limit, floats[2], seeds, positions


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
    yield masks(256)
    for rows, temperature, top_p in (
        (256, 0.0, 1.0),
        (256, 1.0, 1.0),
        (256, 1.0, 0.9),
        (8, 1.0, 1.0),
    ):
        name = f"sample {rows} rows, temperature {temperature}, top-p {top_p}"
        draw = partial(sample, *sampling_case(rows, temperature, top_p))
        yield KernelCase(name, draw, 0, 4 * rows * _VOCABULARY)
    for rows in (256, 1536):
        penalties = partial(penalize_logits, *penalty_case(rows))
        yield KernelCase(f"penalties, {rows} rows", penalties, 0, 4 * rows * _VOCABULARY)


def penalty_case(rows: int, seen: int = 1000) -> tuple[Tensor, ...]:
    """Six rows of each request that has seen ``seen`` tokens."""
    slots = torch.arange(rows, device="cuda") // 6
    marks = torch.zeros(int(slots[-1]) + 1, _VOCABULARY, dtype=torch.int32, device="cuda")
    marks[:, torch.randperm(_VOCABULARY, device="cuda")[:seen]] = 3
    penalties = torch.tensor([0.5, 0.1, 1.1], device="cuda").repeat(len(marks), 1)
    drafts = torch.randint(0, _VOCABULARY, (5, rows), device="cuda")
    logits = torch.randn(rows, _VOCABULARY, device="cuda")
    return logits, torch.arange(rows, device="cuda"), slots, drafts, marks, penalties


def listed(
    requests: int, queries: int, entries: int = 65_536, num_blocks: int = _BLOCKS
) -> KernelCase:
    """Entries that no query of a request lists need not be read."""
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


def masks(rows: int, vocabulary: int = _VOCABULARY) -> KernelCase:
    """Of the logits that are not allowed, half of all, each is written."""
    call = partial(mask_logits, *mask_case(rows, vocabulary))
    return KernelCase(f"mask {rows} rows", call, 0, rows * vocabulary * (2 + 1 / 8))
