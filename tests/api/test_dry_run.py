"""``DryRun``: what it says of memory is what a run would have."""

from __future__ import annotations

from contextlib import closing

import pytest

from deepinfer import dry_run
from deepinfer.arguments import EngineArguments
from deepinfer.engine.cache.kv_cache import block_bytes, slot_bytes
from deepinfer.engine.memory.device_memory import DeviceMemory, step_bytes
from deepinfer.engine.memory.weight_bytes import weight_bytes
from deepinfer.errors import ConfigError


def _blocks(num_ranks: int) -> int | None:
    arguments = EngineArguments(device="cpu", gpu_memory=1.0, expert_parallel_size=num_ranks)
    with closing(dry_run.DryRun(None, arguments)) as made:
        return made.config.num_blocks


def test_a_rank_of_a_gpu_holds_its_part_of_the_experts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever shares experts was refused for want of memory: all of them counted, tables too."""
    with closing(dry_run.DryRun(None, EngineArguments(device="cpu"))) as known:
        model, config, shown = known.model_config, known.config, known.memory
    weights, room = weight_bytes(model), 10 * block_bytes(model, config.block_size)
    beside = step_bytes(model, config) + config.max_num_seqs * slot_bytes(model)
    most = beside + weights.shared + weights.tables + weights.experts // 8 + room
    monkeypatch.setattr(DeviceMemory, "of", lambda device: DeviceMemory(most, most))
    with pytest.raises(ConfigError, match="nothing of it is left for caches"):
        _blocks(1)
    assert _blocks(8) == 10
    monkeypatch.setattr(dry_run, "MOST_DEVICE_BYTES", weights.tables - 1)
    assert _blocks(8) == 10 + weights.tables * 10 // room
    assert shown.weight_bytes == weights.shared + weights.tables + weights.experts
