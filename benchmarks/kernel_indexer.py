"""Index scores, top-k and sampling on the GPU: checks against the references, and times.

``python benchmarks/kernel_indexer.py`` checks, then prints one JSON line for each shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from kernel_timing import Ceilings, Row, microseconds, print_row
from torch import Tensor

from deepinfer.kernels.indexer import paged_index_scores
from deepinfer.kernels.indexer.paged import paged_index_scores_reference
from deepinfer.kernels.indexer.reference import candidate_blocks_reference, select_topk_reference
from deepinfer.kernels.indexer.triton_select import candidate_blocks_triton, select_topk_triton
from deepinfer.kernels.quant import pack_index_rows
from deepinfer.kernels.sampling.reference import exponential_noise, sample
from deepinfer.kernels.sampling.triton_kernel import exponential_noise_triton, sample_triton

_HEADS, _WIDTH, _BLOCK = 32, 128, 64
_VOCABULARY = 129_280


def _paged(requests: int, queries: int, entries: int) -> dict[str, object]:
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


def _sampling(rows: int, temperature: float, top_p: float) -> tuple[Tensor, ...]:
    logits = torch.randn(rows, _VOCABULARY, device="cuda") * 3
    floats = [torch.full((rows,), value, device="cuda") for value in (temperature, top_p, 0.0)]
    seeds = torch.randint(-(2**62), 2**62, (rows,), device="cuda")
    no_limit = torch.zeros(rows, dtype=torch.int64, device="cuda")
    positions = torch.arange(rows, device="cuda")
    return logits, floats[0], floats[1], no_limit, floats[2], seeds, positions


def checks() -> Iterator[tuple[str, Callable[[], str]]]:
    """(name, check); a check returns what it measured and raises AssertionError."""
    for requests, queries in ((3, 6), (5, 1), (1, 100)):
        yield f"index scores, {requests} x {queries}", partial(_check_scores, requests, queries)
    for kind in ("normal", "ties", "few values"):
        for dtype in (torch.bfloat16, torch.float32):
            yield f"top-512 of 131,072, {kind}, {dtype}", partial(_check_topk, kind, dtype)
    yield "candidate blocks", _check_blocks
    yield "noise", _check_noise
    for temperature, top_p in ((0.0, 1.0), (1.0, 1.0), (0.7, 0.9)):
        yield f"sample, {temperature}, top-p {top_p}", partial(_check_sample, temperature, top_p)


def _check_scores(requests: int, queries: int) -> str:
    case = _paged(requests, queries, 1024)
    actual, expected = paged_index_scores(**case), paged_index_scores_reference(**case)
    differing = float((actual != expected).float().mean())
    a, e = actual.double(), expected.double()
    error = float((a - e).norm() / e.norm())
    assert error < 1e-3 and differing < 0.05, f"error {error:.1e}, {differing:.2%} differ"
    return f"relative error {error:.1e}, {differing:.2%} of bits differ"


def _check_topk(kind: str, dtype: torch.dtype) -> str:
    scores = torch.randn(9, 131_072, device="cuda")
    if kind == "ties":
        scores = (scores * 4).round()
    if kind == "few values":
        scores = (scores > 3).float()
    scores = scores.to(dtype)
    visible = torch.tensor([131_072, 0, 1, 511, 512, 513, 70_000, 8192, 8193], device="cuda")
    expected = select_topk_reference(scores, visible, 512)
    assert torch.equal(select_topk_triton(scores, visible, 512), expected), "selection differs"
    return "same entries"


def _check_blocks() -> str:
    scores = torch.randn(5, 100_001, device="cuda").bfloat16()
    visible = torch.tensor([100_001, 100_000, 1, 50_003, 20_000], device="cuda")
    expected = candidate_blocks_reference(scores, visible, 8, 2048)
    assert torch.equal(candidate_blocks_triton(scores, visible, 8, 2048), expected), "blocks differ"
    return "same blocks"


def _check_noise() -> str:
    seeds = torch.randint(-(2**62), 2**62, (4,), device="cuda")
    positions = torch.arange(4, device="cuda")
    actual = exponential_noise_triton(seeds, positions, _VOCABULARY)
    error = float((actual / exponential_noise(seeds, positions, _VOCABULARY) - 1).abs().max())
    error_cpu = float(
        (actual.cpu() / exponential_noise(seeds.cpu(), positions.cpu(), _VOCABULARY) - 1)
        .abs()
        .max()
    )
    assert max(error, error_cpu) < 4e-7, f"{error:.1e}, {error_cpu:.1e} from the CPU"
    return f"relative error {error:.1e}, {error_cpu:.1e} from the CPU"


def _check_sample(temperature: float, top_p: float) -> str:
    case = _sampling(64, temperature, top_p)
    same = int((sample_triton(*case) == sample(*case)).sum())
    assert same == 64, f"{64 - same} of 64 tokens differ"
    return "same tokens"


def timings(ceilings: Ceilings) -> Iterator[Row]:
    for requests, queries, entries in (
        (256, 6, 65_536),
        (256, 1, 65_536),
        (8, 6, 65_536),
        (1, 1024, 65_536),
    ):
        case = _paged(requests, queries, entries)
        us = microseconds(partial(paged_index_scores, **case), repeats=5)
        tokens = requests * queries
        flop = 2 * tokens * entries * _HEADS * _WIDTH
        num_bytes = requests * entries * 68 + 2 * tokens * entries
        name = f"index scores, {requests} x {queries} x {entries}"
        yield ceilings.row(name, us, flop, num_bytes)
    for rows, entries in ((256, 131_072), (1536, 65_536), (8, 131_072), (8, 1 << 20)):
        scores = torch.randn(rows, entries, device="cuda").bfloat16()
        visible = torch.full((rows,), entries, device="cuda")
        us = microseconds(partial(select_topk_triton, scores, visible, 512))
        yield ceilings.row(f"top-512 of {entries}, {rows} rows", us, 0, 2 * rows * entries)
    for rows, temperature, top_p in (
        (256, 0.0, 1.0),
        (256, 1.0, 1.0),
        (256, 1.0, 0.9),
        (8, 1.0, 1.0),
    ):
        us = microseconds(partial(sample_triton, *_sampling(rows, temperature, top_p)))
        name = f"sample {rows} rows, temperature {temperature}, top-p {top_p}"
        yield ceilings.row(name, us, 0, 4 * rows * _VOCABULARY)


def main() -> None:
    for name, check in checks():
        print(f"{name}: {check()}", flush=True)
    for row in timings(Ceilings.measure()):
        print_row(row)


if __name__ == "__main__":
    main()
