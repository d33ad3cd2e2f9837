"""Held-out loss, exact and with bounded replay."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from training.batches import Batch, Tokens, make_batch, pack_rows
from training.losses import next_tokens, token_losses
from training.model import Backbone
from training.parameters import Weights

SCORED_AFTER_REPLAY = 64


def fixed_batches(
    documents: list[Tokens], *, length: int, tokens_per_batch: int, max_batches: int
) -> list[Batch]:
    """Deterministic batches."""
    generator = np.random.default_rng(0)
    rows = pack_rows(documents, length, generator)
    per_batch = tokens_per_batch // length
    groups = [rows[i : i + per_batch] for i in range(0, len(rows), per_batch)][:max_batches]
    return [make_batch(group, length, generator, replay_share=0.0) for group in groups]


@torch.no_grad()
def evaluate(
    backbone: Backbone, weights: Weights, biases: Weights, batches: list[Batch], window: int
) -> dict[str, float]:
    """Mean loss per weighted token; and on the tokens after a replayed prompt, exact and with replay."""
    sums = torch.zeros(5, dtype=torch.float64)
    for on_cpu in batches:
        batch = on_cpu.to(backbone.device)
        exact = _losses(backbone, weights, biases, batch)
        replayed_batch, scored = replay_form(batch, window)
        replayed = _losses(backbone, weights, biases, replayed_batch)
        token_weights = batch.weights.flatten()
        after = scored.flatten() * token_weights
        parts = (exact * token_weights, token_weights, exact * after, replayed * after, after)
        sums += torch.stack([part.sum().double() for part in parts]).cpu()
    loss, count, exact_sum, replayed_sum, after_count = sums.tolist()
    return {
        "valid": loss / count,
        "valid_exact": exact_sum / max(after_count, 1),
        "valid_replay": replayed_sum / max(after_count, 1),
    }


def replay_form(batch: Batch, window: int) -> tuple[Batch, Tensor]:
    """The batch with every sufficiently long document replayed from its middle; and a mask [B, T] f32 of the tokens
    right after the window that a prompt would have replayed."""
    index = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
    is_first = batch.starts == index
    ends = torch.where(is_first, index, len(index)).flip(1).cummin(1).values.flip(1)
    ends = torch.cat([ends[:, 1:], ends.new_full((len(ends), 1), len(index))], dim=1)
    middle = batch.starts + (ends - batch.starts - window).clamp(min=0) // 2
    segments = torch.where((index >= middle) & (middle > batch.starts), middle, batch.starts)
    begun = index - segments
    scored = (
        (segments > batch.starts) & (begun >= window - 1) & (begun < window + SCORED_AFTER_REPLAY)
    )
    changed = Batch(
        tokens=batch.tokens, starts=batch.starts, segments=segments, weights=batch.weights
    )
    return changed, scored.float()


def _losses(backbone: Backbone, weights: Weights, biases: Weights, batch: Batch) -> Tensor:
    trace = backbone(weights, biases, batch)
    return token_losses(trace.hidden, weights["head.weight"], next_tokens(batch))
