"""Packed cache tensors of one device.

Two kinds of state.  *Global KV* lives in blocks that requests share by reference: compressed main
entries and index keys of each producing layer.  *Rings* belong to a state slot and hold the recent
past at ``position % ring_size``: window rows, unpooled (key, gate) pairs, n-gram history.
Everything is addressed by absolute position, so rejected drafts need no rollback: the same
positions are simply written again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from deepinfer.errors import ConfigError

if TYPE_CHECKING:
    from deepinfer.engine.model.config import ModelConfig

# Ratio-2 groups and n-grams look back at most 3 tokens; a verify step writes up to 6 more.
HISTORY_RING_SIZE = 16


@dataclass(frozen=True, slots=True)
class RingSnapshot:
    """Copies of one slot's rings; made by ``KVCache.snapshot``."""

    rings: tuple[Tensor, ...]

    @property
    def num_bytes(self) -> int:
        return sum(ring.nbytes for ring in self.rings)


@dataclass(frozen=True, kw_only=True, eq=False)
class KVCache:
    """All cached state.  Shapes, with ``epb = block_size // ratio`` of the producing layer:

    main     layer -> [num_blocks, epb, main_entry_bytes] u8
    index    layer -> [num_blocks, epb, index_entry_bytes] u8
    window   [num_layers, num_slots, ring_size, window_slot_bytes] u8
    draft    [num_stages, num_slots, ring_size, window_slot_bytes] u8
    partial  layer -> [num_slots, HISTORY_RING_SIZE, 2, head_dim] f32 (ratio-2 producers only)
    history  [num_slots, HISTORY_RING_SIZE] i64, compressed token ids
    """

    block_size: int
    main: dict[int, Tensor]
    index: dict[int, Tensor]
    window: Tensor
    draft: Tensor
    partial: dict[int, Tensor]
    history: Tensor

    @classmethod
    def allocate(
        cls,
        config: ModelConfig,
        *,
        num_blocks: int,
        block_size: int,
        num_slots: int,
        device: torch.device | str = "cpu",
    ) -> KVCache:
        """Zeroed tensors: ``num_blocks`` blocks of ``block_size`` tokens, ``num_slots`` rings.

        Raises: ConfigError if a size is not positive or ``block_size`` splits a compressed group.
        """
        check_cache_sizes(config, num_blocks=num_blocks, block_size=block_size, num_slots=num_slots)
        ratios = {layer: config.compress_ratios[layer] for layer in config.kv_source_layer_ids}

        def bytes_of(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.uint8, device=device)

        def blocks_of(entry_bytes: int) -> dict[int, Tensor]:
            return {
                layer: bytes_of(num_blocks, block_size // ratio, entry_bytes)
                for layer, ratio in ratios.items()
            }

        ring = (num_slots, ring_size(config), config.window_slot_bytes)
        partial_shape = (num_slots, HISTORY_RING_SIZE, 2, config.head_dim)
        return cls(
            block_size=block_size,
            main=blocks_of(config.main_entry_bytes),
            index=blocks_of(config.index_entry_bytes),
            window=bytes_of(config.num_hidden_layers, *ring),
            draft=bytes_of(config.num_nextn_predict_layers, *ring),
            partial={
                layer: torch.zeros(partial_shape, device=device)
                for layer, ratio in ratios.items()
                if ratio > 1
            },
            history=torch.zeros((num_slots, HISTORY_RING_SIZE), dtype=torch.int64, device=device),
        )

    @property
    def num_blocks(self) -> int:
        return next(iter(self.main.values())).shape[0]

    @property
    def num_slots(self) -> int:
        return self.history.shape[0]

    def snapshot(self, slot: int) -> RingSnapshot:
        """A copy of all state of a slot, to ``restore`` into this or another slot."""
        return RingSnapshot(tuple(ring.clone() for ring in self._rings(slot)))

    def restore(self, slot: int, snapshot: RingSnapshot) -> None:
        """Set a slot's state to that of a snapshot."""
        for ring, saved in zip(self._rings(slot), snapshot.rings, strict=True):
            ring.copy_(saved)

    def _rings(self, slot: int) -> list[Tensor]:
        return [
            self.window[:, slot],
            self.draft[:, slot],
            self.history[slot],
            *(partial[slot] for partial in self.partial.values()),
        ]


def ring_size(config: ModelConfig) -> int:
    """Rows of a window ring: the window, and as many as a step may write that are then rejected.

    So a pass may bring at most ``dspark_block_size + 1`` tokens of a request that can be rejected
    (the newest token and its drafts); more would overwrite rows that are still needed.
    """
    return config.sliding_window + config.dspark_block_size


def block_bytes(config: ModelConfig, block_size: int) -> int:
    """Bytes of one block of global KV over all producing layers."""
    entry = config.main_entry_bytes + config.index_entry_bytes
    ratios = (config.compress_ratios[layer] for layer in config.kv_source_layer_ids)
    return sum(block_size // ratio * entry for ratio in ratios)


def slot_bytes(config: ModelConfig) -> int:
    """Bytes of one slot's rings."""
    layers = config.num_hidden_layers + config.num_nextn_predict_layers
    pair_layers = sum(config.compress_ratios[layer] > 1 for layer in config.kv_source_layer_ids)
    window = layers * ring_size(config) * config.window_slot_bytes
    return window + HISTORY_RING_SIZE * (8 + pair_layers * 2 * config.head_dim * 4)


def check_cache_sizes(
    config: ModelConfig, *, num_blocks: int, block_size: int, num_slots: int
) -> None:
    """Raises: ConfigError if a size is not positive or ``block_size`` splits a compressed group."""
    for name, value in (("num_blocks", num_blocks), ("num_slots", num_slots)):
        if value < 1:
            raise ConfigError(f"{name}={value}: expected at least 1")
    ratio = max(config.compress_ratios[layer] for layer in config.kv_source_layer_ids)
    if block_size < 1 or block_size % ratio:
        raise ConfigError(
            f"block_size={block_size}: expected a positive multiple of {ratio}, the largest "
            f"compression ratio of this model; try {max(1, -(-block_size // ratio)) * ratio}"
        )
