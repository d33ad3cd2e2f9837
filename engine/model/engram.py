"""Engram of one layer: n-grams of compressed token ids look up rows of a large table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from deepinfer.engine.cache.kv_cache import HISTORY_RING_SIZE
from deepinfer.kernels.engram import engram_gate, engram_hash, engram_lookup
from deepinfer.kernels.gemm import native_weight, quantized_linear
from deepinfer.kernels.placement import is_reached

from .layer_tensors import LayerTensors
from .residual import Settled
from .tokens import Tokens

if TYPE_CHECKING:
    from .config import ModelConfig

_SEED_FACTOR = 10007
_NO_TOKEN = -1


class Engram:
    """T tokens, S streams, d width, C table columns."""

    def __init__(self, config: ModelConfig, engram_index: int, tensors: LayerTensors) -> None:
        device = tensors.device
        primes = torch.tensor(config.engram_primes[engram_index])
        ends = primes.flatten().cumsum(0)
        self.primes = primes.to(device)
        self.offsets = (ends.view_as(primes) - primes).to(device)
        layer_id = config.engram_layer_ids[engram_index]
        self.multipliers = torch.from_numpy(hash_multipliers(config, layer_id)).to(device)
        # 203 GB at full size, a few kB read per token: the loader decides where it is kept.
        self.table = tensors.stored("engram.embed.weight")
        self.scales = tensors.stored("engram.embed.scale")
        # Otherwise the host looks up rows in the middle of a pass.
        self.is_read_by_kernels = is_reached(self.table, device)
        self.wkv = native_weight(tensors.weight("engram.wkv"))
        self.q_weight = tensors["engram.q_weight"]
        self.k_weight = tensors["engram.k_weight"]

    def rows(self, lookback: Tensor) -> Tensor:
        """Table rows [T, C] i64 of the n-grams that end at each token; lookback [T, G] i64."""
        return engram_hash(lookback, self.multipliers, self.primes, self.offsets)

    def __call__(self, residual: Settled, lookback: Tensor, is_image: Tensor | None) -> Settled:
        """The streams with the memory added; those of image tokens are unchanged."""
        streams = residual.streams
        rows = engram_lookup(self.table, self.scales, self.rows(lookback))
        key_value = quantized_linear(rows, self.wkv)
        added = engram_gate(streams, key_value, self.q_weight, self.k_weight)
        if is_image is not None:
            added = torch.where(is_image[..., None], streams, added)
        return Settled(added, residual.pre)


def hash_multipliers(
    config: ModelConfig, layer_id: int
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """One odd factor per position in an n-gram, [G] i64; products with compressed ids fit in i64.

    Deterministic in ``layer_id``.
    """
    bound = (2**63 - 1) // config.engram_compressed_vocab_size // 2
    generator = np.random.default_rng(_SEED_FACTOR * layer_id)
    return 2 * generator.integers(0, bound, size=config.engram_max_ngram_size, dtype=np.int64) + 1


def read_history(
    history: Tensor, compressed: Tensor, tokens: Tokens, start: Tensor, *, size: int, pad: int
) -> Tensor:
    """Compressed ids of each token and the ``size - 1`` before it, [T, size] i64; stores new ones.

    Shapes: history [num_slots, HISTORY_RING_SIZE] i64 ring, compressed [T] i64, start [R] i64
    (no token exists before it).  Image tokens count as absent, and so does every token before an
    absent one; absent tokens are ``pad``.
    """
    if tokens.is_image is not None:
        compressed = compressed.masked_fill(tokens.is_image[:, 0], _NO_TOKEN)
    back = torch.arange(size, device=compressed.device)
    positions = tokens.positions[:, None] - back
    index = tokens.places[:, None] - back
    earlier = history[tokens.slots[:, None], positions % HISTORY_RING_SIZE]
    ids = torch.where(tokens.offsets[:, None] >= back, compressed[index.clamp(min=0)], earlier)
    absent = (positions < start.clamp(min=0)[tokens.request_rows][:, None]) | (ids == _NO_TOKEN)
    tokens.store_newest(history, compressed)
    return ids.masked_fill(absent.cumsum(1) > 0, pad)
