"""How much of a GPU's memory is left for caches besides the weights and the largest step."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from deepinfer.engine.cache.kv_cache import slot_bytes
from deepinfer.engine.config import EngineConfig
from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.model.indexer import GPU_SCORES_AT_ONCE
from deepinfer.errors import ConfigError

# Rounding by allocators, scratch memory of kernels, and memory of captured graphs.
_SPARE = 1.25
_CONTEXT_BYTES = 1 << 30
_SCORE_BYTES = 2 * GPU_SCORES_AT_ONCE


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Total and free bytes of one GPU."""

    total_bytes: int
    free_bytes: int

    @classmethod
    def of(cls, device: str) -> DeviceMemory | None:
        """The memory of an accelerator; None for a CPU, which is not planned."""
        if torch.device(device).type == "cpu":
            return None
        free, total = torch.get_device_module(device).mem_get_info(device)
        return cls(total, free)

    def less(self, num_bytes: int) -> DeviceMemory:
        """The same with ``num_bytes`` less free, such as for weights not loaded yet."""
        return replace(self, free_bytes=max(0, self.free_bytes - num_bytes))


def bytes_for_blocks(sizes: ModelConfig, config: EngineConfig, memory: DeviceMemory) -> int:
    """Bytes left for cache blocks if the fraction ``config.gpu_memory`` may be used.

    Raises: ConfigError with the breakdown if nothing is left.
    """
    limit = int(memory.total_bytes * config.gpu_memory)
    used = memory.total_bytes - memory.free_bytes
    rings = (config.max_num_seqs + config.num_spare_slots) * slot_bytes(sizes)
    step = step_bytes(sizes, config)
    left = limit - used - rings - step
    if left <= 0:
        parts = {"in use already": used, "rings of requests": rings, "the largest step": step}
        said = ", ".join(f"{name} {value / 2**30:,.1f}" for name, value in parts.items())
        raise ConfigError(
            f"gpu_memory={config.gpu_memory:.0%} is {limit / 2**30:,.1f} GiB, and nothing of it is "
            f"left for caches ({said} GiB): raise it, or lower max_num_seqs or "
            "max_num_batched_tokens"
        )
    return left


def step_bytes(sizes: ModelConfig, config: EngineConfig) -> int:
    """Upper estimate of the bytes that the largest prefill or decode step allocates."""
    rows = config.max_num_seqs * (1 + config.num_speculative_tokens)
    # The results of a step are copied out of the graphs' memory: twice the logits.
    logits = 2 * 4 * sizes.vocab_size * rows
    if config.num_speculative_tokens:
        logits += 2 * 4 * sizes.vocab_size * config.max_num_seqs * sizes.dspark_block_size
    seen = 4 * sizes.vocab_size * config.max_num_seqs  # token counts of requests with penalties
    tokens = max(config.max_num_batched_tokens, rows)
    passes = tokens * _token_bytes(sizes) + _SCORE_BYTES
    return int(_SPARE * (logits + passes)) + seen + _CONTEXT_BYTES


def _token_bytes(sizes: ModelConfig) -> int:
    """Bytes per token of a pass: streams before and after a block, queries and attention output,
    key lists and a sixteenth of their rows (copied and decoded), (token, expert) pairs with their
    hidden rows, taps of the draft stages."""
    streams = 4 * sizes.hc_mult * sizes.hidden_size * 2
    attention = 3 * sizes.num_attention_heads * sizes.head_dim * 2
    num_keys = sizes.sliding_window + sizes.index_topk
    keys = num_keys * (4 * 8 + (2 * sizes.head_dim + sizes.main_entry_bytes) // 16)
    pair = 3 * sizes.moe_intermediate_size * 2 + sizes.hidden_size * 2
    experts = sizes.num_experts_per_tok * pair + 3 * sizes.hidden_size * 4
    taps = len(sizes.dspark_target_layer_ids) * sizes.hidden_size * 2
    engram = (sizes.hc_mult + 1) * sizes.hidden_size * 2 + 8 * sizes.engram_max_ngram_size
    return streams + attention + keys + experts + 2 * taps + engram
