"""Query half of the indexer: scores a producer's index keys and selects the top-k entries.

T tokens, K selected entries per token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from deepinfer.kernels.gemm import linear, native_weight, quantized_linear
from deepinfer.kernels.indexer import (
    candidate_blocks,
    listed_index_scores,
    num_listed_places,
    paged_index_scores,
    pool_rows,
    select_topk,
)
from deepinfer.kernels.norm import NormedRows
from deepinfer.kernels.rows import pack_latents

from .global_kv import Candidates, GlobalKV
from .layer_tensors import LayerTensors
from .rotary import rope_key
from .schedule import LayerPlan
from .tokens import Tokens

if TYPE_CHECKING:
    from .config import ModelConfig

# Scores computed at a time, to limit memory in long contexts; results do not depend on it.  On a
# GPU a large number keeps the queries of a request together, which share its keys.
_SCORES_AT_ONCE = 1 << 24
GPU_SCORES_AT_ONCE = 1 << 28


class Indexer:
    """One index source: scores the keys of ``plan.kv_source`` with its own queries."""

    def __init__(self, config: ModelConfig, plan: LayerPlan, tensors: LayerTensors) -> None:
        self.plan = plan
        self.heads = config.index_n_heads
        self.topk = config.index_topk
        self.candidate_source = config.candidate_source_layer_id
        self.candidate_block_size = config.candidate_block_size
        self.candidate_topk_blocks = config.candidate_topk_blocks
        self.weight_scale = config.index_head_dim**-0.5 * config.index_n_heads**-0.5
        self.wq_b = native_weight(tensors.weight("attn.indexer.wq_b"))
        self.weights_proj = tensors.weight("attn.indexer.weights_proj")

    def select(self, x: Tensor, latent_q: NormedRows, tokens: Tokens, kv: GlobalKV) -> Tensor:
        """Rows in ``kv.main_rows`` of each token's selected entries, [T, K] i64, -1 = unused.

        Shapes: x [T, d] bf16 the layer's input, latent_q [T, q_lora].
        """
        ratio = self.plan.ratio
        visible = tokens.num_visible(ratio)
        if max(kv.batch.context_lens) // ratio <= self.topk:
            # Nothing to select: the list has room for every visible entry.
            entries = torch.arange(self.topk, device=x.device)
            picks = torch.where(entries < visible[:, None], entries, -1)
            table = kv.pick_table(ratio)
            return pool_rows(picks, tokens.request_rows, table, kv.cache.block_size // ratio)
        queries = quantized_linear(latent_q.operand, self.wq_b)
        queries = torch.unflatten(queries, -1, (self.heads, -1))
        query_rows = pack_latents(queries, tokens.rope[rope_key(self.plan)], "index")
        weights = linear(x, self.weights_proj) * self.weight_scale
        return self._pick(query_rows, weights, visible, tokens, kv)

    def _pick(
        self, query_rows: Tensor, weights: Tensor, visible: Tensor, tokens: Tokens, kv: GlobalKV
    ) -> Tensor:
        """[T, K] i64 rows of ``kv.main_rows``."""
        assert self.plan.kv_source is not None
        pool, table = kv.cache.index[self.plan.kv_source], kv.batch.block_table
        pick_table = kv.pick_table(self.plan.ratio)
        num_entries = max(kv.batch.context_lens) // self.plan.ratio
        size = self.candidate_block_size
        candidates = kv.candidates.get(self.candidate_source) if self.plan.uses_candidates else None
        publishes = self.plan.is_candidate_source and self._cuts_something(num_entries)
        picked, listed = [], []
        most = GPU_SCORES_AT_ONCE if query_rows.is_cuda else _SCORES_AT_ONCE
        step = max(1, most // num_entries)
        for first in range(0, len(visible), step):
            rows = slice(first, first + step)
            requests = tokens.request_rows[rows]
            operands = (query_rows[rows], weights[rows], pool, table, requests)
            if candidates is None:
                blocks, seen = None, visible[rows]
                scores = paged_index_scores(*operands, seen, num_entries)
            else:
                blocks, seen = candidates.blocks[rows], candidates.num_places[rows]
                scores = listed_index_scores(*operands, blocks, seen, block_size=size)
            if publishes:
                listed.append(candidate_blocks(scores, seen, size, self.candidate_topk_blocks))
            picks = select_topk(scores, seen, self.topk)
            picks = pool_rows(picks, requests, pick_table, pool.shape[1], blocks, block_size=size)
            picked.append(picks)
        if publishes:
            blocks = _joined(listed)
            kv.candidates[self.plan.layer_id] = Candidates(
                blocks=blocks, num_places=num_listed_places(blocks, visible, size)
            )
        return _joined(picked)

    def _cuts_something(self, num_entries: int) -> bool:
        return num_entries > self.candidate_topk_blocks * self.candidate_block_size


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
