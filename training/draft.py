"""Differentiable draft stages, and their loss against the frozen backbone.

A anchors, K tokens per block, d width, V vocabulary.  An anchor at row index a stands for the situation that the
backbone has run everything before a, token a was just sampled, and tokens a + 1 .. a + K are to be drafted.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from training import layers, pointwise
from training.batches import Batch
from training.layers import Rope, Scope
from training.losses import ROWS_AT_ONCE
from training.model import Trace
from training.parameters import Weights
from training.straight_through import compiled, fp8

from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.model.rotary import Rotary, rope_key
from deepinfer.engine.model.schedule import LayerPlan
from deepinfer.engine.model.streams import initial_streams

POSITION_DECAY = 0.85
VARIATION_WEIGHT = 1.0
CONFIDENCE_WEIGHT = 0.5


@dataclass(frozen=True, slots=True)
class Guess:
    """hidden [A, K, d] bf16 before the final norm, previous [A, K, r] bf16 Markov embeddings of the tokens
    before, loads [E] f32 by stage."""

    hidden: Tensor
    previous: Tensor
    loads: list[Tensor]


class Drafter:
    """All stages; ``weights`` hold the backbone's embedding and head too."""

    def __init__(self, config: ModelConfig, rotary: Rotary) -> None:
        self.config = config
        self.rotary = rotary

    def __call__(
        self, weights: Weights, biases: Weights, batch: Batch, main_hidden: Tensor, anchors: Tensor
    ) -> Guess:
        """``main_hidden`` [N, taps * d] bf16; ``anchors`` [A] i64 flat indices into the N tokens."""
        config, size = self.config, self.config.dspark_block_size
        tokens, steps = batch.tokens.flatten(), torch.arange(size, device=anchors.device)
        position = torch.arange(batch.tokens.shape[1], device=anchors.device) - batch.starts
        position = position.flatten()
        inputs = tokens.new_full((len(anchors), size), config.dspark_noise_token_id)
        inputs[:, 0] = tokens[anchors]
        rope_of = self._rope(position)
        block_rope = self._rope((position[anchors, None] + steps).flatten())
        context = self._context(weights, main_hidden)
        width = config.sliding_window
        ring = anchors[:, None] - width + torch.arange(width, device=anchors.device)
        absent = width - torch.arange(width, device=anchors.device) > position[anchors, None]
        embedded = functional.embedding(inputs.flatten(), weights["embed.weight"])
        streams, pre = initial_streams(embedded, config.hc_mult)
        loads = []
        for stage, plan in enumerate(config.draft_stages):
            scope = Scope(weights, f"mtp.{stage}")
            kept = layers.window_kv(context, Scope(weights, f"mtp.{stage}.attn"), rope_of, config)
            keys = functional.embedding(ring.clamp(min=0), kept)
            attn_mix = layers.mix(streams, scope, "hc_attn", config)
            x = layers.norm(layers.collapse(streams, pre), scope["attn_norm.weight"], config)
            out = self._attention(x, Scope(weights, f"mtp.{stage}.attn"), keys, absent, block_rope)
            streams = layers.expand(streams, out, attn_mix)
            streams, pre, load = self._moe(streams, attn_mix[0], weights, biases, stage, plan)
            loads.append(load)
        hidden = layers.collapse(streams, pre).unflatten(0, (-1, size))
        before = tokens[(anchors[:, None] + steps).clamp(max=len(tokens) - 1)]
        last = f"mtp.{len(config.draft_stages) - 1}.markov_head.embed.weight"
        return Guess(hidden, functional.embedding(before, weights[last]), loads)

    def _rope(self, positions: Tensor) -> Rope:
        return self.rotary.tables(positions)[rope_key(self.config.draft_stages[0])]

    def _context(self, weights: Weights, main_hidden: Tensor) -> Tensor:
        """[N, d] bf16, rounded: the input of every stage's window rows."""
        projected = layers.linear(fp8(main_hidden), weights["mtp.0.main_proj.weight"])
        return fp8(layers.norm(projected, weights["mtp.0.main_norm.weight"], self.config))

    def _attention(
        self, x: Tensor, scope: Scope, keys: Tensor, absent: Tensor, rope: Rope
    ) -> Tensor:
        """Each token attends to its anchor's window, keys [A, W, D], and to its whole block."""
        config, size = self.config, self.config.dspark_block_size
        x8 = fp8(x)
        q, _ = layers.queries(x8, scope, rope, config)
        own = layers.window_kv(x8, scope, rope, config).unflatten(0, (-1, size))
        heads, width = q.shape[1:]
        q_block = q.reshape(-1, size * heads, width)
        window_scores = torch.bmm(q_block, keys.transpose(1, 2)).view(len(q), heads, -1)
        own_scores = torch.bmm(q_block, own.transpose(1, 2)).view(len(q), heads, -1)
        hidden = absent.repeat_interleave(size, dim=0)[:, None, :]
        near, mine, factor = compiled(pointwise.softmax_parts)(
            window_scores, hidden, own_scores, torch.zeros_like(own_scores[:, :1], dtype=torch.bool),
            scope["attn_sink"], width**-0.5,
        )  # fmt: skip
        out = torch.bmm(near.view(len(q_block), size * heads, -1), keys).float()
        out = out + torch.bmm(mine.view(len(q_block), size * heads, -1), own).float()
        out = (out.view(len(q), heads, width) * factor).to(torch.bfloat16)
        return layers.output(out, scope, rope, config)

    def _moe(
        self,
        streams: Tensor,
        pre: Tensor,
        weights: Weights,
        biases: Weights,
        stage: int,
        plan: LayerPlan,
    ) -> tuple[Tensor, Tensor, Tensor]:
        scope, config = Scope(weights, f"mtp.{stage}"), self.config
        mix = layers.mix(streams, scope, "hc_ffn", config)
        x = layers.norm(layers.collapse(streams, pre), scope["ffn_norm.weight"], config)
        moved, load = layers.moe(
            x, Scope(weights, f"mtp.{stage}.ffn"), biases[f"mtp.{stage}.ffn.gate.bias"],
            plan.num_experts_per_tok, config,
        )  # fmt: skip
        return layers.expand(streams, moved, mix), mix[0], load


def choose_anchors(batch: Batch, count: int, generator: torch.Generator) -> Tensor:
    """[count] flat indices of random tokens with at least one token before and after them."""
    length = batch.tokens.shape[1]
    inside = torch.arange(length, device=batch.tokens.device) > batch.starts
    usable = (batch.weights * inside).flatten().cpu()
    chosen = torch.multinomial(usable, min(count, int((usable > 0).sum())), generator=generator)
    return chosen.to(batch.tokens.device)


def draft_loss(
    guess: Guess, trace: Trace, weights: Weights, batch: Batch, anchors: Tensor, config: ModelConfig
) -> tuple[Tensor, dict[str, Tensor]]:
    """Soft cross entropy and total variation to the backbone, plus the confidence head's cross entropy.

    The log has, per block position, the mean overlap with the backbone and the fraction of equal argmaxes.
    """
    size = config.dspark_block_size
    steps = torch.arange(size, device=anchors.device)
    at = (anchors[:, None] + steps).clamp(max=batch.tokens.numel() - 1)
    # The block token at a + k predicts a + k + 1, which must belong to the anchor's document.
    same = batch.starts.flatten()[at] + (at // batch.tokens.shape[1]) * batch.tokens.shape[1]
    own = (
        batch.starts.flatten()[anchors] + (anchors // batch.tokens.shape[1]) * batch.tokens.shape[1]
    )
    usable = (same == own[:, None]) & (batch.weights.flatten()[at] > 0)
    importance = (usable * POSITION_DECAY**steps).flatten()
    columns = [
        checkpoint(_compare, *part, weights, config, use_reentrant=False)
        for part in zip(
            guess.hidden.flatten(0, 1).split(ROWS_AT_ONCE), guess.previous.flatten(0, 1).split(ROWS_AT_ONCE),
            trace.hidden[at.flatten()].split(ROWS_AT_ONCE), strict=True,
        )
    ]  # fmt: skip
    entropy, overlap, confidence, equal = (torch.cat(c) for c in zip(*columns, strict=True))
    total = importance.sum().clamp(min=1)
    language = (entropy * importance).sum() / total
    variation = ((1 - overlap) * importance).sum() / total
    certain = functional.binary_cross_entropy_with_logits(
        confidence, overlap.detach(), reduction="none"
    )
    certain = (certain * importance).sum() / total
    count = usable.sum(0).clamp(min=1)
    parts = {
        "draft": language.detach(),
        "variation": variation.detach(),
        "confidence": certain.detach(),
    }
    for name, values in (("overlap", overlap), ("equal", equal)):
        by_position = (values.detach().view_as(usable) * usable).sum(0) / count
        parts |= {f"{name}_{k}": by_position[k] for k in range(size)}
    return language + VARIATION_WEIGHT * variation + CONFIDENCE_WEIGHT * certain, parts


def guess_logits(
    hidden: Tensor, previous: Tensor, weights: Weights, config: ModelConfig
) -> tuple[Tensor, Tensor]:
    """Draft logits [n, V] f32 and confidence logits [n] f32 of hidden [n, d] and previous [n, r]."""
    last = f"mtp.{len(config.draft_stages) - 1}"
    base = layers.norm(hidden, weights[f"{last}.norm.weight"], config).float()
    logits = base @ weights["head.weight"].float().t()
    logits = logits + previous.float() @ weights[f"{last}.markov_head.head.weight"].float().t()
    features = torch.cat([hidden, previous], dim=-1).detach().float()
    confidence = (features @ weights[f"{last}.confidence_head.proj.weight"].float().t())[:, 0]
    return logits, confidence


def _compare(
    hidden: Tensor, previous: Tensor, target_hidden: Tensor, weights: Weights, config: ModelConfig
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Per row: soft cross entropy, overlap 1 - |p - q| / 2, confidence logit, equal argmax; all [n] f32."""
    with torch.no_grad():
        target = (target_hidden.float() @ weights["head.weight"].float().t()).softmax(-1)
    logits, confidence = guess_logits(hidden, previous, weights, config)
    predicted = logits.log_softmax(-1)
    overlap = torch.minimum(target, predicted.exp()).sum(-1)
    equal = (logits.argmax(-1) == target.argmax(-1)).float()
    return -(target * predicted).sum(-1), overlap, confidence, equal
