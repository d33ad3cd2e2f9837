"""What a benchmark computes with has the sizes of what an engine computes with."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from deepinfer.bench.arrived import fill_tokens
from deepinfer.bench.rank_model import RankModel
from deepinfer.engine.checkpoint.weights import open_checkpoint
from deepinfer.kernels.exchange import Buffers, ExchangeLayout
from deepinfer.kernels.quant import unpack_index_rows, unpack_main_rows, unpack_window_rows
from deepinfer.recipes.embedded import embedded_model_path


def _is_normal(values: Tensor) -> bool:
    """Half of them within 0.674 of 0, give or take rounding to FP4."""
    inside = float((values.double().abs() < 0.7).double().mean())
    return bool(values.isfinite().all()) and abs(inside - 0.5) < 0.1 and values.std() < 1.1


@pytest.mark.parametrize("block", [32, 128])
def test_tokens_of_absent_ranks_are_normal(block: int) -> None:
    layout = ExchangeLayout(num_ranks=3, capacity=5, num_choices=2, hidden_size=256, block=block)
    memory = torch.full((layout.num_bytes,), 255, dtype=torch.uint8)
    none = torch.zeros(3, dtype=torch.int64)
    buffers = Buffers(layout=layout, rank=0, own=memory, peers={}, homes=none, rounds=none)
    fill_tokens(buffers, 1)
    codes = memory[buffers.values_of(1)].view(torch.float8_e4m3fn).view(5, -1, block)
    heads = memory[buffers.heads_of(1)].view(5, -1)
    exponents, rest = heads[:, : 256 // block].float() - 127, heads[:, 256 // block :]
    values = torch.ldexp(codes.float(), exponents[..., None])
    assert _is_normal(values)
    assert float(codes.float().abs().amax(-1).min()) >= 224  # each block uses its whole range
    assert not rest.any()
    assert bool((memory[buffers.values_of(2)] == 255).all())


def test_caches_are_full_of_normal_rows() -> None:
    config = open_checkpoint(embedded_model_path()).config
    rank = RankModel.make(config, ranks=2, context=100, num_slots=2, seed=0, device="cpu")
    cache = rank.cache
    for pools, unpack in (
        (cache.main.values(), unpack_main_rows),
        (cache.index.values(), unpack_index_rows),
        ([cache.window, cache.draft], unpack_window_rows),
    ):
        for pool in pools:
            assert _is_normal(unpack(pool.flatten(0, -2)))
