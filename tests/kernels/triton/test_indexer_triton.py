"""Index scores, candidate blocks and top-k: Triton against the references."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from deepinfer.errors import TensorError
from deepinfer.kernels.gemm.matrix_path import MatrixPath
from deepinfer.kernels.indexer import triton_select
from deepinfer.kernels.indexer.listed import pool_rows_reference
from deepinfer.kernels.indexer.paged import paged_index_scores_reference
from deepinfer.kernels.indexer.reference import candidate_blocks_reference, select_topk_reference
from deepinfer.kernels.indexer.triton_few import has_few, select_few
from deepinfer.kernels.indexer.triton_kernel import paged_index_scores_triton
from deepinfer.kernels.indexer.triton_rows import pool_rows_triton
from deepinfer.kernels.indexer.triton_select import candidate_blocks_triton, select_topk_triton
from deepinfer.kernels.quant import pack_index_rows
from deepinfer.kernels.testing import assert_bitwise_equal, assert_close


def _paged(
    device: torch.device,
    requests: list[int],
    heads: int,
    width: int,
    entries: int,
    per_block: int = 24,
) -> dict[str, Tensor | int]:
    """Queries of the given requests; each request's blocks lie anywhere in the pool."""
    num_requests = max(requests) + 1
    blocks = -(-entries // per_block)
    table = torch.randperm(blocks * num_requests + 3)[: blocks * num_requests]
    pool = torch.randn(blocks * num_requests + 3, per_block, width)
    queries = torch.randn(len(requests), heads, width)
    return {
        "query_rows": pack_index_rows(queries).to(device),
        "head_weights": torch.randn(len(requests), heads).bfloat16().to(device),
        "pool": pack_index_rows(pool).to(device),
        "block_table": table.view(num_requests, blocks).to(device),
        "request_rows": torch.tensor(requests, device=device),
        "num_visible": torch.randint(0, entries + 1, (len(requests),)).to(device),
        "num_entries": entries,
    }


def _check(case: dict[str, Tensor | int], path: MatrixPath) -> None:
    actual = paged_index_scores_triton(**case, path=path)
    expected = paged_index_scores_reference(**case)
    hidden = torch.arange(actual.shape[1], device=actual.device) >= case["num_visible"][:, None]
    actual = actual.masked_fill(hidden, -torch.inf)
    assert_bitwise_equal(actual.isinf(), expected.isinf(), "where -inf is")
    # Heads are summed in another order, then rounded to bf16: near zero by cancellation.
    finite = torch.where(expected.isinf(), 0, expected)
    assert_close(torch.where(actual.isinf(), 0, actual), finite, atol=0.05, rtol=2**-7)


@pytest.mark.parametrize(
    "requests, heads, width, entries",
    [
        ([0, 0, 0, 1, 1, 2], 32, 128, 300),  # the released model's heads
        ([2, 0, 2, 1, 0], 8, 64, 131),  # mixed order
        ([0], 4, 32, 7),
        ([0, 1], 4, 96, 50),
    ],
)
@pytest.mark.parametrize("per_block", [24, 64])
@pytest.mark.parametrize("path", [MatrixPath.DECODED, MatrixPath.SCALED])
def test_scores(
    requests: list[int],
    heads: int,
    width: int,
    entries: int,
    per_block: int,
    path: MatrixPath,
    device: torch.device,
) -> None:
    """A GPU without block-scaled products decodes their operands by itself."""
    _check(_paged(device, requests, heads, width, entries, per_block), path)


def test_scores_of_either_product_have_the_same_bits(device: torch.device) -> None:
    """Scales of a row up to 2 ** 8 apart, and rows of zeros."""
    case = _paged(device, [0, 0, 1, 0, 2], 32, 128, 200)
    for rows in (case["query_rows"], case["pool"]):
        rows[..., 64:] += torch.randint(-4, 5, rows[..., 64:].shape, device=device).byte()
        rows[-1] = 0
    is_seen = torch.arange(200, device=device) < case["num_visible"][:, None]
    decoded, scaled = (
        paged_index_scores_triton(**case, path=path)[is_seen]
        for path in (MatrixPath.DECODED, MatrixPath.SCALED)
    )
    assert_bitwise_equal(scaled, decoded)


def test_scores_without_queries_or_entries(device: torch.device) -> None:
    case = _paged(device, [0], 4, 32, 7)
    assert paged_index_scores_triton(**case | {"num_entries": 0}).shape == (1, 0)
    none = {name: case[name][:0] for name in ("query_rows", "head_weights", "request_rows")}
    none["num_visible"] = case["num_visible"][:0]
    assert paged_index_scores_triton(**case | none).shape == (0, 7)


def test_scores_of_pools_beyond_4_gib(device: torch.device) -> None:
    if device.type != "cuda":
        pytest.skip("allocates 5 GiB")
    case = _paged(device, [0, 0, 1], 32, 128, 300, 64)
    near = case["pool"]
    pool = torch.empty((1_100_000, *near.shape[1:]), dtype=torch.uint8, device=device)
    shift = len(pool) - len(near)
    pool[shift:] = near
    far = case | {"pool": pool, "block_table": case["block_table"] + shift}
    is_seen = torch.arange(300, device=device) < case["num_visible"][:, None]
    expected = paged_index_scores_triton(**case)[is_seen]
    assert_bitwise_equal(paged_index_scores_triton(**far)[is_seen], expected)


def test_a_narrow_block_table_is_refused(device: torch.device) -> None:
    case = _paged(device, [0], 4, 32, 49)
    with pytest.raises(TensorError, match="49 entries need 3 blocks"):
        paged_index_scores_triton(**case | {"block_table": case["block_table"][:, :2].contiguous()})


def _distributions(kind: str, shape: tuple[int, ...]) -> Tensor:
    x = torch.randn(shape)
    if kind == "ties":
        return torch.randint(-2, 3, shape).float()
    if kind == "equal":
        return torch.full(shape, 0.25)
    if kind == "bits":
        return torch.randint(-(2**31), 2**31, shape, dtype=torch.int64).int().view(torch.float32)
    if kind == "infinite":
        return torch.where(x > 1, torch.inf, torch.where(x < 0, -torch.inf, 0.0 * x.sign()))
    if kind == "none":
        return torch.full(shape, -torch.inf)
    if kind == "waves":
        waves = torch.randn(shape[0], -(-shape[1] // 64)).repeat_interleave(64, 1)
        return (x * 1e4 + 100) * 1e-5 + waves[:, : shape[1]]
    if kind == "nan":  # in whole segments, and nothing else in the first row
        x = x.masked_fill(torch.rand(shape) < 0.9, torch.nan)
        x[0] = -torch.nan
    return x * 1e4 + 100


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("kind", ["normal", "ties", "equal", "bits", "infinite", "none", "nan"])
def test_topk(kind: str, dtype: torch.dtype, device: torch.device) -> None:
    scores = _distributions(kind, (6, 700)).to(dtype).to(device)
    visible = torch.tensor([700, 0, 1, 512, 333, 699], device=device)
    for k in (1, 100, 512) if dtype is torch.float32 else (100,):
        expected = select_topk_reference(scores, visible, k)
        assert_bitwise_equal(select_topk_triton(scores, visible, k), expected, f"{k=}")


@pytest.mark.parametrize("shape, k", [((2, 3, 40), 64), ((0, 40), 8), ((2, 0), 8), ((1, 16), 16)])
def test_topk_shapes(shape: tuple[int, ...], k: int, device: torch.device) -> None:
    scores = torch.randn(shape, device=device)
    visible = torch.randint(-1, shape[-1] + 9, shape[:-1]).to(device)
    if shape[-1]:
        assert_bitwise_equal(
            select_topk_triton(scores, visible, k), select_topk_reference(scores, visible, k)
        )
    else:
        assert bool((select_topk_triton(scores, visible, k) == -1).all())


@pytest.mark.parametrize("kind", ["normal", "ties"])
def test_topk_of_many_chunks(
    kind: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_select, "_TILE", 256)
    scores = _distributions(kind, (2, 3_001)).bfloat16().to(device)
    visible = torch.tensor([3_001, 70], device=device)
    expected = select_topk_reference(scores, visible, 64)
    assert_bitwise_equal(select_topk_triton(scores, visible, 64), expected)


# The interpreter's maxima say so where a segment holds nothing but NaN.
ALL_NAN = pytest.mark.filterwarnings("ignore:All-NaN slice encountered")


_KINDS = ["normal", "ties", "equal", "bits", "waves", "holes", "none", "nan"]
_SIZES = [(8229, 64), (16_384, 512), (40_001, 100)]
# In the interpreter two kinds of scores at all sizes, the others at one each.
_INTERPRETED = {(kind, place) for place in range(3) for kind in (*_KINDS[:2], *_KINDS[place::3])}
LISTS = [
    pytest.param(kind, *size, marks=[] if (kind, place) in _INTERPRETED else [pytest.mark.gpu])
    for kind in _KINDS
    for place, size in enumerate(_SIZES)
]


@ALL_NAN
@pytest.mark.parametrize("kind, size, k", LISTS)
def test_lists_of_few(kind: str, size: int, k: int, device: torch.device) -> None:
    """Waves and ties make lists too long, so that rows are searched where they lie; what lies
    behind a row's end is never looked at."""
    if kind == "holes":
        scores = torch.randn(4, size).masked_fill(torch.rand(4, size) < 0.75, -math.inf)
    else:
        scores = _distributions(kind, (4, size))
    stored = torch.full((4, -(-size // 16) * 16), math.inf).bfloat16()
    stored[:, :size] = scores.bfloat16()
    rows, visible = stored.to(device)[:, :size], torch.tensor([size, size // 2 + 3, 70, 0])
    bits = rows.view(torch.int16)
    assert has_few(bits, k)
    expected = select_topk_reference(rows, visible.to(device), k)
    assert_bitwise_equal(select_few(bits, visible.to(device), k), expected)


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    values=st.lists(
        st.sampled_from([-math.inf, -2.0, -0.0, 0.0, 0.5, math.inf, math.nan]), min_size=1
    ),
    visible=st.integers(-2, 60),
    k=st.integers(1, 40),
)
def test_topk_of_any_list(values: list[float], visible: int, k: int, device: torch.device) -> None:
    scores = torch.tensor([values], device=device)
    count = torch.tensor([visible], device=device)
    expected = select_topk_reference(scores, count, k)
    assert_bitwise_equal(select_topk_triton(scores, count, k), expected)


def test_topk_of_a_million(device: torch.device) -> None:
    scores = torch.randn(1, 1 << 20).bfloat16().to(device)
    visible = torch.tensor([(1 << 20) - 5], device=device)
    expected = select_topk_reference(scores, visible, 512)
    assert_bitwise_equal(select_topk_triton(scores, visible, 512), expected)


@pytest.mark.parametrize("columns", [131_072, 131_071])
def test_topk_of_rows_beyond_2_to_the_31(columns: int, device: torch.device) -> None:
    """Numbers of scores before the last rows; wide rows are searched in two ways."""
    if device.type != "cuda":
        pytest.skip("allocates 5 GiB")
    scores = torch.randn(17_000, columns, dtype=torch.bfloat16, device=device)
    visible = torch.randint(0, columns + 1, (17_000,), device=device)
    picks = select_topk_triton(scores, visible, 512)
    bits = scores.view(torch.int16)
    few = select_few(bits, visible, 512) if has_few(bits, 512) else picks
    for part in (slice(0, 3), slice(16_381, 16_387), slice(16_997, 17_000)):
        expected = select_topk_reference(scores[part], visible[part], 512)
        assert_bitwise_equal(picks[part], expected, f"rows {part}")
        assert_bitwise_equal(few[part], expected, f"rows {part}, by lists")


@ALL_NAN
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("entries, num_blocks", [(1000, 20), (1001, 126), (5, 1)])
def test_candidate_blocks(
    entries: int, num_blocks: int, dtype: torch.dtype, device: torch.device
) -> None:
    scores = _distributions("ties", (5, entries)).to(dtype).to(device)
    scores[0, : entries // 2] = -math.inf
    scores[1, ::3], scores[2:4] = math.nan, -math.nan
    visible = torch.tensor([entries, entries - 1, 1, 4, entries // 2], device=device)
    expected = candidate_blocks_reference(scores, visible, 8, num_blocks)
    assert_bitwise_equal(candidate_blocks_triton(scores, visible, 8, num_blocks), expected)


def test_wrong_tensors_are_named(device: torch.device) -> None:
    scores = torch.randn(2, 10, device=device)
    with pytest.raises(TensorError, match="num_visible"):
        select_topk_triton(scores, torch.tensor([3, 3], dtype=torch.int32, device=device), 4)
    with pytest.raises(TensorError, match="scores: expected bf16 or fp32"):
        select_topk_triton(scores.half(), torch.tensor([3, 3], device=device), 4)
    with pytest.raises(TensorError, match="k=5000"):
        select_topk_triton(scores, torch.tensor([3, 3], device=device), 5000)


@pytest.mark.parametrize("k", [1, 7, 64])
@pytest.mark.parametrize("is_listed", [False, True])
def test_pool_rows(is_listed: bool, k: int, device: torch.device) -> None:
    table = torch.randperm(60, device=device).view(3, 20)
    requests = torch.tensor([2, 0, 1, 1], device=device)
    blocks = torch.rand(4, 30, device=device).argsort(1)[:, :9].sort(1).values
    picks = torch.randint(-1, 72, (4, k), device=device)
    lists = (blocks,) if is_listed else ()
    arguments = (picks, requests, table, 12, *lists)
    assert_bitwise_equal(pool_rows_triton(*arguments), pool_rows_reference(*arguments))
    assert pool_rows_triton(picks[:0], requests[:0], table, 12).shape == (0, k)


def test_picks_without_blocks_are_refused(device: torch.device) -> None:
    """Before the kernel looks into a table or a list that has nothing."""
    picks = torch.zeros(2, 3, dtype=torch.int64, device=device)
    table, rows = picks[:1, :2].contiguous(), picks[:, 0].contiguous()
    for empty, size in ((table[:0], 8), (table[:, :0].contiguous(), 8), (table, 0), (table, -1)):
        with pytest.raises(TensorError, match="block_table: expected blocks of 1 entry or more"):
            pool_rows_triton(picks, rows, empty, size)
    for lists, size in ((picks[:, :0].contiguous(), 8), (picks, 0)):
        with pytest.raises(TensorError, match="blocks: expected lists of blocks"):
            pool_rows_triton(picks, rows, table, 8, lists, block_size=size)
