"""Sparse attention on the GPU: checks against the reference, and times of the model's shapes.

``python benchmarks/kernel_attention.py`` checks, then prints one JSON line for each shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from kernel_timing import Ceilings, Row, microseconds, print_row
from torch import Tensor

from deepinfer.kernels.attention import sparse_attention
from deepinfer.kernels.attention.reference import sparse_attention_reference
from deepinfer.kernels.quant import pack_main_rows, pack_window_rows
from deepinfer.kernels.rope import rope_frequencies, rope_table
from deepinfer.kernels.rope.reference import apply_rope_reference

_HEADS, _WIDTH, _WINDOW, _PICKS = 64, 512, 128, 512


def random_case(queries: int, rows: int = 8192, absent: float = 0.0) -> dict[str, object]:
    """Operands of the released model; every query lists rows of its own."""

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


def decode_case(requests: int, queries: int, absent: float = 0.0) -> dict[str, object]:
    """Requests with rows of their own: 8,192 compressed ones, of which each query lists 512 in
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


def checks() -> Iterator[tuple[str, Callable[[], str]]]:
    """(name, check); a check returns what it measured and raises AssertionError."""
    for absent in (0.0, 0.3):
        for pieces in (None, 64, 320):
            yield (
                f"attention, {absent:.0%} absent, pieces of {pieces}",
                partial(_check, absent, pieces),
            )
    yield "attention, rotated", _check_rotated
    yield "attention, same bits in any batch", _check_bits
    yield "attention, queries without keys", _check_empty


def _compare(actual: Tensor, expected: Tensor) -> str:
    a, e = actual.double(), expected.double()
    cosine = float(1 - 2 * (a * e).sum() / ((a * a).sum() + (e * e).sum()))
    worst = float((a - e).abs().max())
    message = f"cosine distance {cosine:.1e}, largest error {worst:.1e}"
    assert cosine < 5e-6 and float(((a - e).abs() - e.abs() * 2.01 / 128).max()) < 1e-3, message
    return message


def _check(absent: float, pieces: int | None) -> str:
    case = random_case(37, absent=absent)
    return _compare(sparse_attention(**case, piece_keys=pieces), sparse_attention_reference(**case))


def _check_rotated() -> str:
    case = random_case(37, absent=0.1)
    positions = torch.randint(0, 1 << 20, (37,))
    rope = tuple(x.cuda() for x in rope_table(rope_frequencies(64, 1.6e5), positions))
    turned = case | {"q": apply_rope_reference(case["q"], *rope)}
    expected = apply_rope_reference(sparse_attention_reference(**turned), *rope, inverse=True)
    return _compare(sparse_attention(**case, rope=rope), expected)


def _check_bits() -> str:
    case = random_case(512, absent=0.2)
    per_query = ("q", "window_index", "main_index")
    for pieces in (None, 128):
        whole = sparse_attention(**case, piece_keys=pieces)
        for count in (1, 2, 7, 64, 256):
            part = case | {name: case[name][:count] for name in per_query}
            out = sparse_attention(**part, piece_keys=pieces)
            assert torch.equal(out, whole[:count]), f"{count} queries differ from those of 512"
        again = sparse_attention(**case, piece_keys=pieces)
        assert torch.equal(again, whole), "a second run differs"
    return "1 to 512 queries"


def _check_empty() -> str:
    case = random_case(4)
    case["window_index"].fill_(-1)
    case["main_index"].fill_(-1)
    for pieces in (None, 64):
        assert not sparse_attention(**case, piece_keys=pieces).any(), "not zero"
    return "zero"


def timings(ceilings: Ceilings) -> Iterator[Row]:
    for requests, queries, absent, pieces in [
        (8, 1, 0.0, None), (8, 1, 0.0, 128), (8, 6, 0.0, None), (8, 6, 0.0, 128), (8, 6, 0.0, 384),
        (256, 1, 0.0, None), (256, 1, 0.3, None), (256, 6, 0.0, None), (256, 6, 0.3, None),
    ]:  # fmt: skip
        name = f"attention {requests} x {queries}, {absent:.0%} absent, pieces {pieces}"
        yield _timed(ceilings, name, decode_case(requests, queries, absent), pieces)
    yield _timed(ceilings, "attention, prefill of 4096", random_case(4096, 65536), None)


def _timed(ceilings: Ceilings, name: str, case: dict[str, object], pieces: int | None) -> Row:
    queries = case["q"].shape[0]  # type: ignore[attr-defined]
    positions = torch.arange(queries)
    rope = tuple(x.cuda() for x in rope_table(rope_frequencies(64, 1.6e5), positions))
    us = microseconds(partial(sparse_attention, **case, rope=rope, piece_keys=pieces))
    num_bytes = queries * (_WINDOW * 528 + _PICKS * 288 + 4 * _HEADS * _WIDTH)
    return ceilings.row(name, us, 4 * queries * _HEADS * _WIDTH * (_WINDOW + _PICKS), num_bytes)


def main() -> None:
    for name, check in checks():
        print(f"{name}: {check()}", flush=True)
    for row in timings(Ceilings.measure()):
        print_row(row)


if __name__ == "__main__":
    main()
