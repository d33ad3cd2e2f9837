"""Sizes, layout and errors of the packed cache."""

from __future__ import annotations

import pytest
import torch

from deepinfer.engine.cache.kv_cache import (
    KVCache,
    block_bytes,
    check_cache_sizes,
    ring_size,
    slot_bytes,
)
from deepinfer.engine.model.config import ModelConfig
from deepinfer.errors import ConfigError


def test_full_size_global_kv_is_890_bytes_per_token():
    config = ModelConfig.flash()
    for block_size in (2, 64, 256):
        assert block_bytes(config, block_size) == 890 * block_size
    assert ring_size(config) == 128 + 5
    assert (config.main_entry_bytes, config.index_entry_bytes) == (288, 68)
    assert config.window_slot_bytes == 528


def test_the_tensors_are_as_large_as_promised(model):
    config = model.config
    cache = KVCache.allocate(config, num_blocks=3, block_size=8, num_slots=2)
    pools = [*cache.main.values(), *cache.index.values()]
    assert sum(pool.nbytes for pool in pools) == 3 * block_bytes(config, 8)
    rings = [cache.window, cache.draft, cache.history, *cache.partial.values()]
    assert sum(ring.nbytes for ring in rings) == 2 * slot_bytes(config)
    assert cache.snapshot(1).num_bytes == slot_bytes(config)
    assert (cache.num_blocks, cache.num_slots) == (3, 2)


def test_full_size_cache_on_the_meta_device():
    cache = KVCache.allocate(
        ModelConfig.flash(), num_blocks=1000, block_size=64, num_slots=8, device="meta"
    )
    assert sorted(cache.main) == [2, 8, 14, 20]
    assert cache.main[2].shape == (1000, 32, 288)
    assert cache.index[20].shape == (1000, 64, 68)
    assert sorted(cache.partial) == [2, 8, 14]


def test_restore_touches_one_slot_only(model):
    cache = KVCache.allocate(model.config, num_blocks=1, block_size=8, num_slots=3)
    rings = [cache.window, cache.draft, *cache.partial.values()]
    for ring in rings:
        ring.copy_(torch.randint(0, 100, ring.shape))
    cache.history.copy_(torch.randint(0, 100, cache.history.shape))
    snapshot = cache.snapshot(0)
    others = [cache.snapshot(1), cache.snapshot(2)]
    for ring in (*rings, cache.history):
        ring[:, 0] = 0
    cache.restore(2, snapshot)
    for now, saved in zip(cache.snapshot(2).rings, snapshot.rings, strict=True):
        assert torch.equal(now, saved)
    assert not torch.equal(cache.snapshot(2).rings[0], others[1].rings[0])


@pytest.mark.parametrize("sizes, message", [
    ({"block_size": 7}, "try 8"),
    ({"block_size": 0}, "try 2"),
    ({"num_blocks": 0}, "num_blocks=0"),
    ({"num_slots": -1}, "num_slots=-1"),
])  # fmt: skip
def test_sizes_that_cannot_work_are_refused(model, sizes, message):
    with pytest.raises(ConfigError, match=message):
        check_cache_sizes(
            model.config, **{"num_blocks": 2, "block_size": 8, "num_slots": 1, **sizes}
        )
