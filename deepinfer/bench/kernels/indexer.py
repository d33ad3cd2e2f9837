"""Index scores, top-k and sampling at the model's shapes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from deepinfer.kernels.indexer import paged_index_scores, select_topk
from deepinfer.kernels.quant import pack_index_rows
from deepinfer.kernels.sampling import penalize_logits, sample

from .case import KernelCase

_HEADS, _WIDTH, _BLOCK = 32, 128, 64
_VOCABULARY = 129_280


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
