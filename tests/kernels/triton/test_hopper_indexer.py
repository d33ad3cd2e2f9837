"""The Hopper form of the index scores against the reference, and against itself in other batches.

Runs on an H100 or H200 (``pytest -m gpu``); ``test_hopper_compile.py`` compiles it anywhere.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from deepinfer.kernels.indexer.paged import paged_index_scores_reference
from deepinfer.kernels.launch import is_hopper
from deepinfer.kernels.quant import pack_index_rows
from deepinfer.kernels.testing import assert_bitwise_equal, relative_error

pytestmark = pytest.mark.gpu
Case = dict[str, Tensor | int]
CUDA = torch.device("cuda")


@pytest.fixture(autouse=True)
def _needs_hopper() -> None:
    if not (torch.cuda.is_available() and is_hopper(CUDA)):
        pytest.skip("no Hopper GPU")


def _score(case: Case) -> Tensor:
    from deepinfer.kernels.indexer.gluon_launch import paged_index_scores_gluon

    return paged_index_scores_gluon(**case)


def _case(requests: list[int], entries: int, per_block: int = 64, spread: int = 0) -> Case:
    """Blocks of 32 numbers have scales up to ``spread`` powers of two apart."""

    def rows(*shape: int) -> Tensor:
        blocks = torch.randn(*shape, 4, 32, device=CUDA)
        powers = torch.randint(0, spread + 1, (*shape, 4, 1), device=CUDA)
        return pack_index_rows((blocks * torch.exp2(-powers.float())).flatten(-2))

    count, num_requests, blocks = len(requests), max(requests) + 1, -(-entries // per_block)
    return {
        "query_rows": rows(count, 32),
        "head_weights": torch.randn(count, 32, device=CUDA).bfloat16(),
        "pool": rows(num_requests * blocks, per_block),
        "block_table": torch.randperm(num_requests * blocks, device=CUDA).view(num_requests, -1),
        "request_rows": torch.tensor(requests, device=CUDA),
        "num_visible": torch.randint(1, entries + 1, (count,), device=CUDA),
        "num_entries": entries,
    }


def _check(case: Case, largest_error: float) -> None:
    hidden = torch.arange(case["num_entries"], device=CUDA) >= case["num_visible"][:, None]
    actual = _score(case).masked_fill(hidden, -torch.inf)
    expected = paged_index_scores_reference(**case).masked_fill(hidden, -torch.inf)
    assert_bitwise_equal(actual.isinf(), expected.isinf(), "where -inf is")
    seen = expected.isfinite()
    assert float(relative_error(actual[seen], expected[seen])) < largest_error


@pytest.mark.parametrize(
    "requests, entries, per_block",
    [
        ([0] * 6 + [1] * 6, 1000, 64),
        ([0, 1, 2, 3], 130, 64),
        ([0] * 100, 5000, 64),
        ([0] * 3 + [1] + [2] * 6 + [3] * 2 + [4] * 5, 777, 24),
        ([2, 0, 2, 1, 0], 31, 8),
    ],
)
def test_matches_reference(requests: list[int], entries: int, per_block: int) -> None:
    _check(_case(requests, entries, per_block), 1e-4)


def test_spread_scales() -> None:
    """Blocks more than 2**11 below the largest of a row count as 0."""
    _check(_case([0] * 6 + [1] * 3, 2000, spread=6), 2e-3)
    _check(_case([0] * 6 + [1] * 3, 2000, spread=14), 2e-3)


def test_same_bits_in_any_batch_and_every_run() -> None:
    case = _case([0] * 6 + [1] * 5, 3000)
    case["num_visible"].fill_(3000)
    whole = _score(case)
    assert_bitwise_equal(_score(case), whole)
    for query in range(11):
        names = ("query_rows", "head_weights", "request_rows", "num_visible")
        alone = {name: case[name][query : query + 1] for name in names}
        assert_bitwise_equal(_score(case | alone)[0], whole[query], f"{query=}")


def test_17_000_requests() -> None:
    _check(_case(list(range(17_000)), 64), 1e-4)


def test_pools_beyond_4_gib() -> None:
    """All entries, and those of listed blocks."""
    from deepinfer.kernels.indexer import listed_index_scores

    case = _case([0] * 6 + [1], 500)
    case["num_visible"].fill_(500)
    near = case["pool"]
    pool = torch.empty((1_100_000, *near.shape[1:]), dtype=torch.uint8, device=CUDA)
    shift = len(pool) - len(near)
    pool[shift:] = near
    far = case | {"pool": pool, "block_table": case["block_table"] + shift}
    whole = _score(case)
    assert_bitwise_equal(_score(far), whole)
    blocks = torch.tensor([1, 5, 62], device=CUDA).expand(7, -1).contiguous()
    names = ("query_rows", "head_weights", "pool", "block_table", "request_rows")
    count = torch.full((7,), 20, device=CUDA)
    found = listed_index_scores(*[far[name] for name in names], blocks, count, block_size=8)
    places = (blocks[0, :, None] * 8 + torch.arange(8, device=CUDA)).flatten()[:20]
    assert_bitwise_equal(found[:, :20], whole[:, places])


def test_nothing_to_score() -> None:
    case = _case([0], 70)
    assert _score(case | {"num_entries": 0}).shape == (1, 0)


@pytest.mark.parametrize(
    "entries, per_block, size", [(1000, 64, 8), (20_000, 64, 8), (5000, 24, 8), (1000, 64, 4)]
)
def test_listed_entries_have_the_bits_of_all(entries: int, per_block: int, size: int) -> None:
    """Query by query; none, few and all blocks listed, the last one not whole.  Blocks of other
    sizes than 8 have no kernel of their own."""
    from deepinfer.kernels.indexer import listed_index_scores

    case = _case([0] * 6 + [1] * 3, entries, per_block)
    case["num_visible"].fill_(entries)
    whole, count = _score(case), -(-entries // size)
    blocks = torch.where(
        torch.rand(9, count, device=CUDA) < 0.2, torch.arange(count, device=CUDA), count
    )
    blocks[0], blocks[1] = count, torch.arange(count, device=CUDA)
    blocks = blocks.sort(1).values
    listed = (blocks[..., None] * size + torch.arange(size, device=CUDA)).flatten(1)
    num_places = (listed < entries).sum(1)
    blocks = torch.where(blocks < count, blocks, -1)
    names = ("query_rows", "head_weights", "pool", "block_table", "request_rows")
    operands = [case[name] for name in names]
    found = listed_index_scores(*operands, blocks, num_places, block_size=size)
    assert found.shape == (9, size * count)
    for query, places in enumerate(num_places.tolist()):
        expected = whole[query][listed[query, :places]]
        assert_bitwise_equal(found[query, :places], expected, f"{query=}")
