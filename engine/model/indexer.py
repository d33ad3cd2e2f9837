"""Query half of the indexer: scores a producer's index keys and picks the best entries.

T tokens, K picks per token, N entries of the longest request at hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from deepinfer.kernels.gemm import linear, quantized_linear
from deepinfer.kernels.indexer import candidate_blocks, index_scores, select_topk
from deepinfer.kernels.numeric import CACHE_ELEMENTS
from deepinfer.kernels.quant import fake_quantize_fp4, unpack_index_rows
from deepinfer.kernels.rope import apply_rope

from .global_kv import GlobalKV
from .layer_tensors import LayerTensors
from .rotary import rope_key
from .schedule import LayerPlan
from .tokens import Tokens

if TYPE_CHECKING:
    from .config import ModelConfig

_SHORT_QUERY = 8


class Indexer:
    """One index source: its own queries against the keys of ``plan.kv_source``."""

    def __init__(self, config: ModelConfig, plan: LayerPlan, tensors: LayerTensors) -> None:
        self.plan = plan
        self.heads = config.index_n_heads
        self.topk = config.index_topk
        self.candidate_source = config.candidate_source_layer_id
        self.candidate_block_size = config.candidate_block_size
        self.candidate_topk_blocks = config.candidate_topk_blocks
        self.weight_scale = config.index_head_dim**-0.5 * config.index_n_heads**-0.5
        self.wq_b = tensors.weight("attn.indexer.wq_b")
        self.weights_proj = tensors.weight("attn.indexer.weights_proj")

    def select(self, x: Tensor, latent_q: Tensor, tokens: Tokens, kv: GlobalKV) -> Tensor:
        """Pool rows of each token's picked entries, [T, K] i64, ascending, -1 = unused.

        Shapes: x [T, d] bf16 the layer's input, latent_q [T, q_lora] bf16.
        """
        ratio = self.plan.ratio
        visible = (tokens.positions + 1).div(ratio, rounding_mode="floor")
        if max(kv.batch.context_lens) // ratio <= self.topk:
            # Nothing to choose: a list takes every visible entry, whatever the scores.
            entries = torch.arange(self.topk, device=x.device)
            picks = torch.where(entries < visible[:, None], entries, -1)
        else:
            queries = quantized_linear(latent_q, self.wq_b)
            queries = torch.unflatten(queries, -1, (self.heads, -1))
            queries = apply_rope(queries, *tokens.rope[rope_key(self.plan)])
            weights = linear(x, self.weights_proj) * self.weight_scale
            picks = self._pick(fake_quantize_fp4(queries).float(), weights, visible, tokens, kv)
        return kv.rows_of(picks, tokens.request_rows, ratio)

    def _pick(
        self, queries: Tensor, weights: Tensor, visible: Tensor, tokens: Tokens, kv: GlobalKV
    ) -> Tensor:
        """[T, K] i64 entries."""
        num_tokens, heads, _ = queries.shape
        # Padding tokens have index -1: they read the last token and write the spare row.
        picks = queries.new_empty((num_tokens + 1, self.topk), dtype=torch.int64)
        kept = self._new_candidates(num_tokens, kv)
        most_scores = heads * min(_SHORT_QUERY, max(tokens.query_lens)) * max(kv.batch.context_lens)
        for requests, rows in _groups(tokens, max(1, CACHE_ELEMENTS // most_scores)):
            keys = self._keys(requests, kv)
            tile = max(1, CACHE_ELEMENTS // (len(requests) * heads * keys.shape[1]))
            for part in torch.split(rows, tile, dim=1):
                seen = (
                    keys if tile >= rows.shape[1] else keys[:, : max(1, int(visible[part].max()))]
                )
                scores = index_scores(queries[part], weights[part], seen)
                if self.plan.uses_candidates:
                    scores = self._within_candidates(scores, part, kv)
                if kept is not None:
                    blocks = candidate_blocks(
                        scores, visible[part], self.candidate_block_size, self.candidate_topk_blocks
                    )
                    kept[part, : blocks.shape[-1]] = blocks
                picks[part] = select_topk(scores, visible[part], self.topk)
        return picks[:num_tokens]

    def _keys(self, requests: range, kv: GlobalKV) -> Tensor:
        """Index keys [R, N, D] f32 of some requests, up to the longest of them."""
        assert self.plan.kv_source is not None
        pool = kv.cache.index[self.plan.kv_source]
        longest = max(kv.batch.context_lens[request] for request in requests)
        num_blocks = -(-longest // kv.cache.block_size)
        blocks = kv.block_table[requests.start : requests.stop, :num_blocks]
        rows = pool.index_select(0, blocks.flatten())
        return unpack_index_rows(rows.view(len(requests), -1, rows.shape[-1]))

    def _new_candidates(self, num_tokens: int, kv: GlobalKV) -> Tensor | None:
        """Where to publish candidate blocks [T + 1, blocks] bool; None if nothing would be cut."""
        num_entries = max(kv.batch.context_lens) // self.plan.ratio
        num_blocks = -(-num_entries // self.candidate_block_size)
        if not self.plan.is_candidate_source or num_blocks <= self.candidate_topk_blocks:
            return None
        # Keys come in whole cache blocks, so a few blocks past the last entry may be scored too.
        num_blocks += -(-kv.cache.block_size // self.candidate_block_size)
        kept = kv.batch.positions.new_zeros((num_tokens + 1, num_blocks), dtype=torch.bool)
        kv.candidates[self.plan.layer_id] = kept
        return kept

    def _within_candidates(self, scores: Tensor, part: Tensor, kv: GlobalKV) -> Tensor:
        kept = kv.candidates.get(self.candidate_source)
        if kept is None:
            return scores
        is_candidate = kept[part].repeat_interleave(self.candidate_block_size, dim=-1)
        return scores.masked_fill(~is_candidate[..., : scores.shape[-1]], -torch.inf)


def _groups(tokens: Tokens, most_together: int) -> Iterator[tuple[range, Tensor]]:
    """Runs of requests and their tokens' indices [R, Q] i64, -1 where a request has fewer.

    Requests with few tokens (decoding, verifying) go together, prompts one by one.
    """
    lens = tokens.query_lens
    device = tokens.positions.device
    if max(lens) <= _SHORT_QUERY:
        rows = torch.full((len(lens), max(lens)), -1, device=device)
        rows[tokens.request_rows, tokens.offsets] = torch.arange(sum(lens), device=device)
        for first in range(0, len(lens), most_together):
            requests = range(first, min(first + most_together, len(lens)))
            yield requests, rows[first : requests.stop]
        return
    start = 0
    for request, count in enumerate(lens):
        if count:
            yield (
                range(request, request + 1),
                torch.arange(start, start + count, device=device)[None],
            )
        start += count
