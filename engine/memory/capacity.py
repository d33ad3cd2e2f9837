"""Sizes the KV cache: number of blocks and maximum context of an engine."""

from __future__ import annotations

import sys
from dataclasses import replace

from deepinfer.engine.cache.kv_cache import KVCache, block_bytes, slot_bytes
from deepinfer.engine.config import EngineConfig
from deepinfer.engine.execution.runner import Cache, Runner
from deepinfer.engine.model.config import ModelConfig
from deepinfer.errors import ConfigError

from .device_memory import DeviceMemory, bytes_for_blocks

_CPU_CACHE_GIB = 1.0


def plan_cache(
    model: Runner, config: EngineConfig, cache: Cache | None
) -> tuple[EngineConfig, Cache]:
    """The configuration completed by ``size_cache``, and the cache.  Raises: ConfigError."""
    sizes = model.config
    memory = DeviceMemory.of(config.device) if cache is None else None
    config = size_cache(sizes, config, memory)
    assert config.num_blocks is not None
    return config, _allocate(sizes, config, config.num_blocks) if cache is None else cache


def size_cache(
    sizes: ModelConfig, config: EngineConfig, memory: DeviceMemory | None = None
) -> EngineConfig:
    """The configuration with ``num_blocks`` and ``max_model_len`` filled in; allocates nothing.

    ``memory`` is that of the GPU after loading the weights, None on a CPU.
    Raises: ConfigError if memory, the model's context and the requested context contradict.
    """
    _check_drafts(config.num_speculative_tokens, sizes)
    context = config.max_model_len or sizes.max_position_embeddings
    if context > sizes.max_position_embeddings:
        raise ConfigError(
            f"max_model_len={context} is more than the model's context of "
            f"{sizes.max_position_embeddings} tokens"
        )
    num_blocks = config.num_blocks
    if num_blocks is None:
        wanted = config.max_num_seqs * -(-context // config.block_size)
        per_block = block_bytes(sizes, config.block_size)
        num_blocks = min(wanted, _block_memory(sizes, config, memory) // per_block)
    capacity = num_blocks * config.block_size
    if config.max_model_len is not None and capacity < context:
        raise ConfigError(
            f"{num_blocks} blocks of {config.block_size} tokens hold {capacity} tokens, fewer than "
            f"max_model_len={context}: raise num_blocks or cache_memory_gib (gpu_memory on a GPU), "
            "or lower max_model_len"
        )
    if capacity < 2:
        raise ConfigError(
            "the cache memory is too small for a single block: raise cache_memory_gib, or "
            "gpu_memory on a GPU"
        )
    return replace(config, num_blocks=num_blocks, max_model_len=min(context, capacity))


def wanted_bytes(sizes: ModelConfig, config: EngineConfig) -> int:
    """Bytes of the cache blocks that ``config`` asks for, whether or not they fit."""
    per_block = block_bytes(sizes, config.block_size)
    if config.num_blocks is not None:
        return config.num_blocks * per_block
    context = min(config.max_model_len or sys.maxsize, sizes.max_position_embeddings)
    most = config.max_num_seqs * -(-context // config.block_size) * per_block
    given = config.cache_memory_gib
    return most if given is None else min(most, int(given * 2**30))


def _block_memory(sizes: ModelConfig, config: EngineConfig, memory: DeviceMemory | None) -> int:
    """Bytes available for cache blocks."""
    if config.cache_memory_gib is None and memory is not None:
        return bytes_for_blocks(sizes, config, memory)
    gib = _CPU_CACHE_GIB if config.cache_memory_gib is None else config.cache_memory_gib
    return int(gib * 2**30)


def _allocate(sizes: ModelConfig, config: EngineConfig, num_blocks: int) -> KVCache:
    """The cache tensors.  Raises: ConfigError with their size if they do not fit."""
    try:
        return KVCache.allocate(
            sizes,
            num_blocks=num_blocks,
            block_size=config.block_size,
            num_slots=config.max_num_seqs + config.num_spare_slots,
            device=config.device,
        )
    except (RuntimeError, MemoryError) as error:  # what torch raises on CPU and GPU alike
        num_bytes = num_blocks * block_bytes(sizes, config.block_size)
        num_bytes += (config.max_num_seqs + config.num_spare_slots) * slot_bytes(sizes)
        raise ConfigError(
            f"caches for num_blocks={num_blocks} and max_num_seqs={config.max_num_seqs} need "
            f"{num_bytes / 2**30:,.1f} GiB, which {config.device} does not have: lower them, or "
            "cache_memory_gib"
        ) from error


def _check_drafts(num_speculative_tokens: int, sizes: ModelConfig) -> None:
    if num_speculative_tokens and not sizes.num_nextn_predict_layers:
        raise ConfigError(
            f"num_speculative_tokens={num_speculative_tokens}: this model has no draft stages "
            "(num_nextn_predict_layers is 0); set it to 0"
        )
    if num_speculative_tokens > sizes.dspark_block_size:
        raise ConfigError(
            f"num_speculative_tokens={num_speculative_tokens}: this model drafts "
            f"{sizes.dspark_block_size} tokens at a time (dspark_block_size); lower it"
        )
