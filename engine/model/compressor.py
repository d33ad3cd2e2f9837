"""Producer of global KV: compresses tokens into main entries and index keys, and stores them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from deepinfer.kernels.compressor import pool_tokens
from deepinfer.kernels.gemm import Weight, fp32_linear, linear
from deepinfer.kernels.norm import rms_norm
from deepinfer.kernels.rows import store_latents

from .global_kv import GlobalKV
from .layer_tensors import LayerTensors
from .schedule import LayerPlan
from .tokens import Tokens

if TYPE_CHECKING:
    from .config import ModelConfig


class Compressor:
    """The compressor and the key half of the indexer of one "full" layer."""

    def __init__(self, config: ModelConfig, plan: LayerPlan, tensors: LayerTensors) -> None:
        self.plan = plan
        self.eps = config.rms_norm_eps
        weights = [tensors.weight("attn.compressor.wkv")]
        if plan.ratio > 1:
            weights.append(tensors.weight("attn.compressor.wgate"))
        self.wkv_gate = Weight.concat(weights)
        self.norm = tensors["attn.compressor.norm.weight"]
        self.wk = tensors.weight("attn.indexer.wk")
        self.k_norm = tensors["attn.indexer.k_norm.weight"]

    def write(self, x: Tensor, tokens: Tokens, kv: GlobalKV) -> None:
        """Compress x [T, d] bf16 and store the entries that have become complete."""
        layer = self.plan.layer_id
        new = kv.new_entries(self.plan.ratio)
        pooled = linear(x, self.wkv_gate) if self.plan.ratio == 1 else self._pool(x, tokens, kv)
        latent = rms_norm(pooled, self.norm, self.eps)
        rope = kv.entry_rope(self.plan)
        pools = kv.cache.main[layer], kv.cache.index[layer]
        main, index = (pool.view(-1, pool.shape[-1]) for pool in pools)
        store_latents(latent, rope, "main", main, new.rows)
        key = linear(latent, self.wk)
        store_latents(key, rope, "index", index, new.rows, weight=self.k_norm, eps=self.eps)

    def _pool(self, x: Tensor, tokens: Tokens, kv: GlobalKV) -> Tensor:
        """Pooled latents of each token and the previous one, [T, D] bf16; every other one becomes
        an entry.

        A pair may begin in an earlier pass: unpooled keys and gates are kept in a ring.
        """
        ring = kv.cache.partial[self.plan.layer_id]
        key_gate = torch.unflatten(fp32_linear(x, self.wkv_gate), -1, (2, -1))
        places = (tokens.slots, tokens.positions, tokens.offsets, tokens.places)
        pooled = pool_tokens(key_gate, ring, *places)
        tokens.store_newest(ring, key_gate)
        return pooled
