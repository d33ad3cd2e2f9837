"""The memory plan against what is really stored and allocated."""

from __future__ import annotations

from pathlib import Path

import pytest

from deepinfer.engine.cache.kv_cache import KVCache
from deepinfer.engine.checkpoint.weights import open_checkpoint
from deepinfer.engine.config import EngineConfig
from deepinfer.engine.memory.capacity import size_cache
from deepinfer.engine.memory.memory_plan import memory_plan
from deepinfer.errors import ConfigError

_FOLDER = Path(__file__).parents[1] / "goldens" / "tiny-a" / "checkpoint"


def test_the_plan_is_what_is_stored_and_allocated() -> None:
    """In batch-invariant mode with 6 snapshots, and as many spare slots to fill."""
    checkpoint = open_checkpoint(_FOLDER)
    config = size_cache(
        checkpoint.config, EngineConfig(max_num_seqs=3, num_blocks=40, batch_invariant=True)
    )
    plan = memory_plan(checkpoint.config, config)
    assert plan.weight_bytes == sum(tensor.nbytes for tensor in checkpoint.load().values())
    cache = KVCache.allocate(checkpoint.config, num_blocks=40, block_size=64, num_slots=3)
    blocks = [*cache.main.values(), *cache.index.values()]
    rings = [cache.window, cache.draft, cache.history, *cache.partial.values()]
    assert plan.num_blocks * plan.block_bytes == sum(tensor.nbytes for tensor in blocks)
    assert plan.max_num_seqs * plan.slot_bytes == sum(tensor.nbytes for tensor in rings)
    assert plan.snapshot_bytes == (6 + 6) * cache.snapshot(0).num_bytes
    assert plan.cache_tokens == 2560


def test_how_many_requests_fit() -> None:
    sizes = open_checkpoint(_FOLDER).config
    plan = memory_plan(sizes, size_cache(sizes, EngineConfig(max_num_seqs=8, num_blocks=10)))
    assert [plan.num_fitting(n) for n in (1, 64, 65, 320, 640, 641)] == [8, 8, 5, 2, 1, 0]


def test_sizes_that_do_not_agree_are_refused_before_anything_is_allocated() -> None:
    sizes = open_checkpoint(_FOLDER).config
    with pytest.raises(ConfigError, match="raise num_blocks"):
        size_cache(sizes, EngineConfig(num_blocks=1, max_model_len=100))
