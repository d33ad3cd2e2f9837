"""Cases of ``deepinfer bench kernels``: small ones, with the references of a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from deepinfer.bench.kernels import drafts, indexer, moe, rows, sampling
from deepinfer.bench.kernels.case import KernelCase
from deepinfer.kernels.engram import engram_hash


class _OnCpu(TorchFunctionMode):
    """What asks for a GPU gets the CPU."""

    def __torch_function__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if "device" in kwargs:
            kwargs["device"] = "cpu"
        return call(*args, **kwargs)


@pytest.fixture
def on_cpu() -> Iterator[None]:
    torch.manual_seed(0)
    with _OnCpu():
        yield


def _result(case: KernelCase) -> Any:
    assert case.num_bytes > 0 and case.flop >= 0 and case.rate in ("FP8", "bf16")
    return case.call()


@pytest.mark.usefixtures("on_cpu")
def test_listed_scores_are_those_of_the_listed_entries() -> None:
    operands = indexer.listed_case(2, 3, 256, 5)
    blocks = operands["blocks"]
    assert blocks.shape == (6, 5) and bool((blocks.diff() > 0).all()) and int(blocks.max()) == 31
    assert operands["num_places"].tolist() == [40] * 6
    case = indexer.listed(2, 3, 256, 5)
    scores = _result(case)
    assert scores.shape == (6, 40) and bool(scores.float().isfinite().all())
    assert "2 x 3 x 40 of 256" in case.name


@pytest.mark.usefixtures("on_cpu")
def test_candidates_and_masks() -> None:
    blocks = _result(indexer.candidates(3, 256, 7))
    assert blocks.shape == (3, 7) and bool((blocks.diff() > 0).all())
    case = sampling.masks(3, 100)
    assert _result(case) is None
    logits = case.call.args[0]  # type: ignore[attr-defined]
    assert 0.3 < float(logits.isinf().float().mean()) < 0.7


@pytest.mark.usefixtures("on_cpu")
def test_picks_lie_in_the_blocks_of_their_request() -> None:
    found = _result(indexer.picked(3, 2, 256, 5))
    assert found.shape == (6, 5) and bool((found >= 0).all()) and int(found.max()) < 3 * 256


@pytest.mark.usefixtures("on_cpu")
def test_routing_and_the_shared_expert() -> None:
    ids, weights = _result(moe.routing(4, 64, 16))
    assert ids.shape == weights.shape == (4, 6)
    assert _result(moe.shared(3, 64, 32)).shape == (3, 32)


@pytest.mark.usefixtures("on_cpu")
def test_heads_and_verification_of_drafts() -> None:
    markov, confidence = (_result(case) for case in drafts.draft_heads(2, 50, 64))
    assert markov.shape == (2, 50) and confidence.shape == (2, 5)
    verified = _result(drafts.verification(4, 50))
    assert verified.shape == (4, 2) and 0 < int(verified[:, 0].max()) <= 5


@pytest.mark.usefixtures("on_cpu")
def test_halves_of_a_projection() -> None:
    case = rows.projection(5, 64)
    queries = _result(case)
    assert queries.values.shape == (5, 64)
    *_, cache, places = case.call.args  # type: ignore[attr-defined]
    assert len(places) == 5 and bool(cache[places].any(1).all())


@pytest.mark.usefixtures("on_cpu")
def test_pooling_and_hash() -> None:
    pooled = _result(rows.pooling(3, 4))
    assert pooled.shape == (12, 512) and bool(pooled.float().isfinite().all())
    lookback, multipliers, sizes, offsets = rows.hash_case(5)
    found = engram_hash(lookback, multipliers, sizes, offsets)
    assert found.shape == (5, 24)
    assert bool((found >= offsets.flatten()).all() & (found < (offsets + sizes).flatten()).all())
