"""Whether a rank keeps the FP4 weights of routed experts as FP8: results are the same bits."""

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

# Rows for each expert from which FP8 is faster in both products (docs/performance.md).
ROWS_WORTH_FP8 = 128


def with_expert_form(
    config: EngineConfig,
    sizes: ModelConfig,
    memory: DeviceMemory | None,
    *,
    held: float = 1.0,
    tokens: int,
) -> EngineConfig:
    """``config`` with ``expert_weights`` fp4 or fp8.

    ``auto`` is fp8 where a step of ``tokens`` tokens, of all ranks that share experts, brings
    enough rows to each, and the caches that ``config`` asks for still fit beside the weights.
    ``memory`` is that of the GPU before they are loaded, None where FP8 is no faster: anywhere but
    on an NVIDIA SM90.  ``held``: the part of all experts that is here.
    """
    is_fp8 = memory is not None and (
        config.expert_weights == "fp8"
        or config.expert_weights == "auto"
        and is_worth_fp8(sizes, tokens)
        and _has_room(config, sizes, memory, held)
    )
    return replace(config, expert_weights="fp8" if is_fp8 else "fp4")


def is_worth_fp8(sizes: ModelConfig, tokens: int) -> bool:
    """Whether so many tokens in all bring enough rows to each expert."""
    return tokens * sizes.num_experts_per_tok >= ROWS_WORTH_FP8 * sizes.n_routed_experts


@cache
def more_bytes_as_fp8(sizes: ModelConfig) -> int:
    """What FP8 takes more than FP4 for the routed experts of all ranks."""
    experts = (spec for name, spec in expected_tensors(sizes).items() if ".experts." in name)
    # Twice the codes, and no scales of 32 inputs each.
    return sum(-spec.num_bytes if spec.is_scale else spec.num_bytes for spec in experts)


def _has_room(config: EngineConfig, sizes: ModelConfig, memory: DeviceMemory, held: float) -> bool:
    weights = weight_bytes(sizes)
    loaded = weights.shared + int(held * (weights.experts + more_bytes_as_fp8(sizes)))
    try:
        return bytes_for_blocks(sizes, config, memory.less(loaded)) >= wanted_bytes(sizes, config)
    except ConfigError:
        return False
