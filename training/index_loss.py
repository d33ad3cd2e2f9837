"""Selection of compressed entries, and the loss that trains the indexers to match attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.model.schedule import LayerPlan
from deepinfer.kernels.indexer.reference import (
    candidate_blocks_reference,
    index_scores_reference,
    select_topk_reference,
)

SCORES_AT_ONCE = 1 << 28


@dataclass(frozen=True, slots=True)
class IndexInput:
    """Of one index source: queries [B, T, Hi, Di], weights [B, T, Hi], keys [B, M, Di], all bf16."""

    queries: Tensor
    weights: Tensor
    keys: Tensor


@torch.no_grad()
def select(
    index: IndexInput,
    starts: Tensor,
    plan: LayerPlan,
    candidates: Tensor | None,
    config: ModelConfig,
) -> tuple[Tensor, Tensor | None]:
    """Selected entries [B, T, K] i64 of every token, ascending, -1 = none; and candidates [B, T, blocks] bool
    if this layer publishes them.  ``starts`` [B, T]: first row index of a token's document."""
    batch, length, heads, _ = index.queries.shape
    entries = index.keys.shape[1]
    visible = visible_entries(length, plan.ratio, starts.device).expand(batch, -1)
    at_once = max(1, SCORES_AT_ONCE // (length * heads * entries))
    picks, kept = [], []
    for rows in torch.arange(batch).split(at_once):
        part = slice(int(rows[0]), int(rows[-1]) + 1)
        scores = index_scores_reference(
            index.queries[part].float(), index.weights[part], index.keys[part].float()
        )
        first = starts[part].div(plan.ratio, rounding_mode="floor")[..., None]
        scores.masked_fill_(torch.arange(entries, device=scores.device) < first, -torch.inf)
        if plan.is_candidate_source:
            blocks = candidate_blocks_reference(
                scores, visible[part], config.candidate_block_size, config.candidate_topk_blocks
            )
            kept.append(_among(blocks, -(-entries // config.candidate_block_size)))
        if plan.uses_candidates and candidates is not None:
            allowed = candidates[part].repeat_interleave(config.candidate_block_size, dim=-1)
            scores.masked_fill_(~allowed[..., :entries], -torch.inf)
        picks.append(select_topk_reference(scores, visible[part], config.index_topk))
    return torch.cat(picks), torch.cat(kept) if kept else None


def _among(blocks: Tensor, count: int) -> Tensor:
    """[..., count] bool: which blocks are listed in ``blocks``, where -1 is none."""
    found = torch.zeros(*blocks.shape[:-1], count + 1, dtype=torch.bool, device=blocks.device)
    return found.scatter(-1, torch.where(blocks < 0, count, blocks), True)[..., :-1]


def visible_entries(length: int, ratio: int, device: torch.device) -> Tensor:
    """[T] number of entries visible at each row index."""
    return (torch.arange(length, device=device) + 1).div(ratio, rounding_mode="floor")


def index_loss(
    index: IndexInput, q: Tensor, main: Tensor, starts: Tensor, sample: Tensor, plan: LayerPlan
) -> Tensor:
    """KL divergence from the layer's own attention over compressed entries to the indexer's softmax.

    Shapes: q [B, T, H, D], main [B, M, D], ``sample`` [Q] row indices of the queries to use.
    """
    entries = torch.arange(main.shape[1], device=main.device)
    first = starts[:, sample].div(plan.ratio, rounding_mode="floor")[..., None]
    last = visible_entries(q.shape[1], plan.ratio, q.device)[sample][:, None]
    hidden = (entries < first) | (entries >= last)
    with torch.no_grad():
        batch, num_queries, heads, width = q[:, sample].shape
        logits = torch.bmm(q[:, sample].flatten(1, 2), main.transpose(1, 2)).float() * width**-0.5
        logits = logits.view(batch, num_queries, heads, -1).masked_fill(
            hidden[:, :, None], -torch.inf
        )
        target = torch.nan_to_num(logits.softmax(-1)).mean(2)
    dots = torch.einsum("bqhd,bmd->bqhm", index.queries[:, sample], index.keys)
    scores = (dots.relu().float() * index.weights[:, sample, :, None].float()).sum(2)
    predicted = scores.masked_fill(hidden, -torch.inf).log_softmax(-1).masked_fill(hidden, 0.0)
    entropy = (target * target.clamp(min=1e-9).log()).sum(-1)
    several = (~hidden).sum(-1) > 1
    divergence = entropy - (target * predicted).sum(-1)
    return divergence.masked_fill(~several, 0.0).sum() / several.sum().clamp(min=1)
