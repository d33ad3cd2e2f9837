"""Losses of the backbone, and load balancing of its routers."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from training.batches import Batch
from training.model import Trace
from training.parameters import Weights

from deepinfer.engine.model.config import ModelConfig

INDEX_LOSS_WEIGHT = 1.0
ROWS_AT_ONCE = 16384


def token_losses(hidden: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy [N] f32 of hidden [N, d] bf16 against targets [N] i64, in chunks to save memory."""
    pieces = []
    for part, wanted in zip(hidden.split(ROWS_AT_ONCE), targets.split(ROWS_AT_ONCE), strict=True):
        pieces.append(checkpoint(_cross_entropy, part, head, wanted, use_reentrant=False))
    return torch.cat(pieces)


def _cross_entropy(hidden: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    # bf16 values are exact in TF32, so on a GPU this equals the model's fp32 product.
    return functional.cross_entropy(hidden.float() @ head.float().t(), targets, reduction="none")


def next_tokens(batch: Batch) -> Tensor:
    """[N] i64: the target of every token; the last token of a row has weight 0."""
    return torch.roll(batch.tokens, -1, dims=1).flatten()


def backbone_loss(trace: Trace, weights: Weights, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    """The total loss, and its terms for the log."""
    losses = token_losses(trace.hidden, weights["head.weight"], next_tokens(batch))
    token_weights = batch.weights.flatten()
    language = (losses * token_weights).sum() / token_weights.sum()
    parts = {"loss": language.detach()}
    total = language
    if trace.index_losses:
        index = torch.stack(trace.index_losses).sum()
        parts["index"] = index.detach()
        total = total + INDEX_LOSS_WEIGHT * index
    return total, parts


@torch.no_grad()
def balance_routers(biases: Weights, trace: Trace, config: ModelConfig, rate: float) -> Tensor:
    """Raise the bias of underused experts and lower that of others; returns the largest load."""
    worst = torch.zeros((), device=trace.hidden.device)
    for layer, load in trace.loads.items():
        bias = biases[f"layers.{layer}.ffn.gate.bias"]
        bias += rate * torch.sign(load.mean() - load)
        worst = torch.maximum(worst, load.max() / load.mean())
    return worst
