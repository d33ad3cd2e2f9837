"""Memory of an engine's weights and caches, from sizes alone: nothing is loaded or allocated."""

from __future__ import annotations

from deepinfer.engine.cache.kv_cache import block_bytes, slot_bytes
from deepinfer.engine.config import EngineConfig
from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.types import MemoryPlan

from .expert_form import more_bytes_as_fp8
from .weight_bytes import weight_bytes


def memory_plan(
    sizes: ModelConfig, config: EngineConfig, *, num_expert_ranks: int = 1
) -> MemoryPlan:
    """The memory plan of an engine whose ``config`` was completed by ``size_cache``; of one of its
    ranks if ``num_expert_ranks`` split the routed experts."""
    assert config.num_blocks is not None and config.max_model_len is not None
    has_snapshots = config.enable_prefix_caching and config.restores_snapshots
    num_saved = config.most_snapshots + config.num_spare_slots
    weights = weight_bytes(sizes)
    experts = weights.experts
    if config.expert_weights == "fp8":
        experts += more_bytes_as_fp8(sizes)
    return MemoryPlan(
        weight_bytes=weights.shared + weights.tables + experts // num_expert_ranks,
        block_bytes=block_bytes(sizes, config.block_size),
        num_blocks=config.num_blocks,
        block_size=config.block_size,
        slot_bytes=slot_bytes(sizes),
        max_num_seqs=config.max_num_seqs,
        snapshot_bytes=num_saved * slot_bytes(sizes) if has_snapshots else 0,
        max_model_len=config.max_model_len,
    )
