"""How many redundant experts a rank has room for."""

from __future__ import annotations

from dataclasses import replace

from deepinfer.engine.memory.device_memory import DeviceMemory
from deepinfer.engine.memory.weight_bytes import weight_bytes
from deepinfer.engine.model.config import ModelConfig

from .sizes import ParallelSizes

# Share of the memory left by the weights: replicas even out the load, but caches need room, too.
_SHARE = 1 / 8
# Per rank and layer; 32 over 8 ranks bring skewed loads within 5 % of even (docs/scaling.md).
_MOST = 4


def sized_by_memory(
    sizes: ParallelSizes, config: ModelConfig, memory: DeviceMemory | None, gpu_memory: float
) -> ParallelSizes:
    """``sizes`` with the number of redundant experts resolved: as given; none if experts are never
    rebalanced; else as many per rank as fit an eighth of what the weights leave, at most 4.

    ``memory`` is that of one GPU, of which the fraction ``gpu_memory`` may be used; None on a CPU,
    where each rank gets 1.
    """
    if sizes.num_redundant_experts is not None:
        return sizes
    each = 0
    if sizes.expert_rebalance_interval:
        each = 1 if memory is None else _each(sizes, config, memory.total_bytes * gpu_memory)
    # With prefill and decode ranks, the number applies to each role.
    ranks = [len(engine) for engine in sizes.engines]
    total = each * max(ranks) if len(set(ranks)) == 1 or not each else 0
    return replace(sizes, num_redundant_experts=total)


def _each(sizes: ParallelSizes, config: ModelConfig, num_bytes: float) -> int:
    """Redundant experts per rank and layer."""
    weights = weight_bytes(config)
    left = num_bytes - weights.shared - weights.experts / sizes.num_expert_ranks
    one_of_each_layer = weights.experts / config.n_routed_experts
    return max(0, min(_MOST, int(_SHARE * left / one_of_each_layer)))
