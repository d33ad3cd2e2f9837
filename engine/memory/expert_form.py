"""Decides whether a rank stores the routed experts' FP4 weights as FP8; results are the same."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from deepinfer.engine.config import EngineConfig
from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.model.tensors import expected_tensors
from deepinfer.errors import ConfigError

from .capacity import wanted_bytes
from .device_memory import DeviceMemory, bytes_for_blocks
from .weight_bytes import weight_bytes

# Tokens per expert from which FP8 is faster in both GEMMs (docs/performance.md).
ROWS_WORTH_FP8 = 128


def with_expert_form(
    config: EngineConfig,
    sizes: ModelConfig,
    memory: DeviceMemory | None,
    *,
    held: float = 1.0,
    tokens: int,
) -> EngineConfig:
    """``config`` with ``expert_weights`` resolved to fp4 or fp8.

    ``auto`` becomes fp8 if a step of ``tokens`` tokens, over all expert-parallel ranks, brings
    enough to each expert, and the requested caches still fit besides the weights.  ``memory`` is
    that of the GPU before loading, None where FP8 is not faster: anywhere but on NVIDIA SM90.
    ``held``: the fraction of all experts on this rank.
    """
    is_fp8 = memory is not None and (
        config.expert_weights == "fp8"
        or config.expert_weights == "auto"
        and is_worth_fp8(sizes, tokens)
        and _has_room(config, sizes, memory, held)
    )
    return replace(config, expert_weights="fp8" if is_fp8 else "fp4")


def is_worth_fp8(sizes: ModelConfig, tokens: int) -> bool:
    """Whether ``tokens`` in all bring enough to each expert."""
    return tokens * sizes.num_experts_per_tok >= ROWS_WORTH_FP8 * sizes.n_routed_experts


@cache
def more_bytes_as_fp8(sizes: ModelConfig) -> int:
    """Additional bytes of FP8 over FP4 for the routed experts of all ranks."""
    experts = (spec for name, spec in expected_tensors(sizes).items() if ".experts." in name)
    # Twice as many code bytes, and no scales per 32 inputs.
    return sum(-spec.num_bytes if spec.is_scale else spec.num_bytes for spec in experts)


def _has_room(config: EngineConfig, sizes: ModelConfig, memory: DeviceMemory, held: float) -> bool:
    weights = weight_bytes(sizes)
    loaded = weights.shared + int(held * (weights.experts + more_bytes_as_fp8(sizes)))
    try:
        return bytes_for_blocks(sizes, config, memory.less(loaded)) >= wanted_bytes(sizes, config)
    except ConfigError:
        return False
