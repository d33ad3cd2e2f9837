"""How many further replicas of experts a rank has room for."""

from __future__ import annotations

from dataclasses import replace

from deepinfer.engine.memory.device_memory import DeviceMemory
from deepinfer.engine.memory.weight_bytes import weight_bytes
from deepinfer.engine.model.config import ModelConfig

from .sizes import ParallelSizes

# Of the memory that weights leave: replicas even out the load, caches let more requests run.
_SHARE = 1 / 8
# Of each rank and layer; 32 over 8 ranks bring skewed loads within 5 % of even (docs/scaling.md).
_MOST = 4


def sized_by_memory(
    sizes: ParallelSizes, config: ModelConfig, memory: DeviceMemory | None, gpu_memory: float
) -> ParallelSizes:
    """``sizes`` with a number of redundant experts: the given one, none where experts stay where
    they are, else as many on each rank as fit an eighth of what weights leave of a GPU, at most 4.

    ``memory`` is that of one GPU, of which ``gpu_memory`` may be in use; None on a CPU: then 1.
    """
    if sizes.num_redundant_experts is not None:
        return sizes
    each = 0
    if sizes.expert_rebalance_interval:
        each = 1 if memory is None else _each(sizes, config, memory.total_bytes * gpu_memory)
    # With two roles the ranks of each have as many on all of them together.
    ranks = [len(engine) for engine in sizes.engines]
    total = each * max(ranks) if len(set(ranks)) == 1 or not each else 0
    return replace(sizes, num_redundant_experts=total)


def _each(sizes: ParallelSizes, config: ModelConfig, num_bytes: float) -> int:
    """Replicas of one rank and layer."""
    weights = weight_bytes(config)
    left = num_bytes - weights.shared - weights.experts / sizes.num_expert_ranks
    one_of_each_layer = weights.experts / config.n_routed_experts
    return max(0, min(_MOST, int(_SHARE * left / one_of_each_layer)))
