"""Sparse attention at the model's shapes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from deepinfer.kernels.attention import sparse_attention
from deepinfer.kernels.quant import pack_main_rows, pack_window_rows
from deepinfer.kernels.rope import rope_frequencies, rope_table

from .case import KernelCase

_HEADS, _WIDTH, _WINDOW, _PICKS = 64, 512, 128, 512


def random_case(queries: int, rows: int = 8192, absent: float = 0.0) -> dict[str, Any]:
    """Operands at the released model's sizes; every query has its own rows."""

    def index(count: int) -> Tensor:
        listed = torch.randint(0, rows, (queries, count), device="cuda")
        return listed.masked_fill_(torch.rand(queries, count, device="cuda") < absent, -1)

    return {
        "q": torch.randn(queries, _HEADS, _WIDTH, device="cuda").bfloat16(),
        "window_rows": pack_window_rows(torch.randn(rows, _WIDTH, device="cuda") / 4),
        "window_index": index(_WINDOW),
        "main_rows": pack_main_rows(torch.randn(rows, _WIDTH, device="cuda") / 4),
        "main_index": index(_PICKS),
        "sink": torch.randn(_HEADS, device="cuda"),
        "scale": _WIDTH**-0.5,
    }


def decode_case(requests: int, queries: int, absent: float = 0.0) -> dict[str, Any]:
    """Requests with their own rows: 8,192 compressed ones, of which each query selects 512 in
    ascending order, and a window ring of 136."""
    count, own = requests * queries, 8192
    few = pack_main_rows(torch.randn(4096, _WIDTH, device="cuda") / 4)
    request = torch.arange(requests, device="cuda").repeat_interleave(queries)[:, None]
    picks = torch.randint(0, own, (count, _PICKS), device="cuda").sort(dim=1).values + request * own
    place = torch.arange(count, device="cuda")[:, None] % queries + request * 136
    case = random_case(count, rows=1)
    case["window_rows"] = pack_window_rows(torch.randn(requests * 136, _WIDTH, device="cuda") / 4)
    case["window_index"] = place + torch.arange(_WINDOW, device="cuda")
    case["main_rows"] = few[torch.randint(0, len(few), (requests * own,), device="cuda")]
    is_absent = torch.rand(count, _PICKS, device="cuda") < absent
    case["main_index"] = picks.masked_fill_(is_absent, -1)
    return case


def cases() -> Iterator[KernelCase]:
    for requests, queries, absent, pieces in [
        (8, 1, 0.0, None), (8, 1, 0.0, 64), (8, 1, 0.0, 128),
        (8, 6, 0.0, None), (8, 6, 0.0, 128), (8, 6, 0.0, 384),
        (256, 1, 0.0, None), (256, 1, 0.3, None), (256, 6, 0.0, None), (256, 6, 0.3, None),
    ]:  # fmt: skip
        name = f"attention {requests} x {queries}, {absent:.0%} absent, pieces {pieces}"
        yield _case(name, decode_case(requests, queries, absent), pieces)
    yield _case("attention, prefill of 4096", random_case(4096, 65536), None)


def _case(name: str, operands: dict[str, Any], pieces: int | None) -> KernelCase:
    queries = len(operands["q"])
    cos, sin = rope_table(rope_frequencies(64, 1.6e5), torch.arange(queries))
    rope = cos.cuda(), sin.cuda()
    call = partial(sparse_attention, **operands, rope=rope, piece_keys=pieces)
    flop = 4 * queries * _HEADS * _WIDTH * (_WINDOW + _PICKS)
    num_bytes = queries * (_WINDOW * 528 + _PICKS * 288 + 4 * _HEADS * _WIDTH)
    return KernelCase(name, call, flop, num_bytes, "bf16")
