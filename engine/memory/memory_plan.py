"""What an engine's weights and caches take, from sizes alone: nothing is loaded or allocated."""

from __future__ import annotations

from deepinfer.engine.cache.kv_cache import block_bytes, slot_bytes
from deepinfer.engine.config import EngineConfig
from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.model.tensors import expected_tensors
from deepinfer.engine.types import MemoryPlan

from .expert_form import more_bytes_as_fp8


def memory_plan(
    sizes: ModelConfig, config: EngineConfig, *, num_expert_ranks: int = 1
) -> MemoryPlan:
    """The plan of an engine with ``config``, whose sizes ``size_cache`` has filled in; of one of
    its ranks if ``num_expert_ranks`` share the routed experts."""
    assert config.num_blocks is not None and config.max_model_len is not None
    num_snapshots = 0
    if config.enable_prefix_caching and config.restores_snapshots:
        num_snapshots = 2 * config.max_num_seqs
        if config.num_snapshots is not None:
            num_snapshots = config.num_snapshots
    weight_bytes = sum(
        spec.num_bytes // (num_expert_ranks if ".experts." in name else 1)
        for name, spec in expected_tensors(sizes).items()
    )
    if config.expert_weights == "fp8":
        weight_bytes += more_bytes_as_fp8(sizes) // num_expert_ranks
    return MemoryPlan(
        weight_bytes=weight_bytes,
        block_bytes=block_bytes(sizes, config.block_size),
        num_blocks=config.num_blocks,
        block_size=config.block_size,
        slot_bytes=slot_bytes(sizes),
        max_num_seqs=config.max_num_seqs,
        snapshot_bytes=num_snapshots * slot_bytes(sizes),
        max_model_len=config.max_model_len,
    )
