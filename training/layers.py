"""Differentiable sub-blocks of the model, on rows of packed documents.

They compute the same values as the reference operations in ``deepinfer.kernels``, organized for training: windows are
computed in blocks, and all experts run on all tokens, with weight 0 where not chosen.  The ``*_reference`` functions
are used on every device, because the kernels have no gradients.
B rows, T tokens per row, N = B * T, H heads, D latent width, S streams, W window, K picks, E experts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from training import pointwise
from training.parameters import Weights
from training.straight_through import compiled, fp4, fp4_e4m3, fp8

from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.model.schedule import LayerPlan
from deepinfer.kernels.compressor.reference import pool_pairs_reference
from deepinfer.kernels.norm.reference import rms_norm_reference
from deepinfer.kernels.numeric import softplus
from deepinfer.kernels.rope.reference import apply_rope_reference

Rope = tuple[Tensor, Tensor]


Mix = tuple[Tensor, Tensor, Tensor]
"""pre [N, S], post [N, S], comb [N, S, S] f32 of one sub-block."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The weights whose names start with a prefix."""

    weights: Weights
    prefix: str

    def __getitem__(self, name: str) -> Tensor:
        return self.weights[f"{self.prefix}.{name}"]


def linear(x: Tensor, weight: Tensor) -> Tensor:
    return functional.linear(x, weight)


def norm(x: Tensor, weight: Tensor, config: ModelConfig) -> Tensor:
    return rms_norm_reference(x, weight, config.rms_norm_eps)


def rotate(x: Tensor, rope: Rope, inverse: bool = False) -> Tensor:
    return apply_rope_reference(x, *rope, inverse)


def mix(streams: Tensor, scope: Scope, name: str, config: ModelConfig) -> Mix:
    """Coefficients of one sub-block from streams [N, S, d] bf16."""
    return compiled(pointwise.stream_mix)(
        streams,
        scope[f"{name}_fn"],
        scope[f"{name}_scale"],
        scope[f"{name}_base"],
        config.hc_sinkhorn_iters,
        config.hc_eps,
    )


def collapse(streams: Tensor, pre: Tensor) -> Tensor:
    return compiled(pointwise.collapse)(streams, pre)


def expand(streams: Tensor, output: Tensor, coefficients: Mix) -> Tensor:
    return compiled(pointwise.expand)(streams, output, *coefficients[1:])


def queries(x8: Tensor, scope: Scope, rope: Rope, config: ModelConfig) -> tuple[Tensor, Tensor]:
    """q [N, H, D] bf16 and the rounded latent query [N, q_lora] bf16 of rounded input x8 [N, d]."""
    latent = fp8(norm(linear(x8, scope["wq_a.weight"]), scope["q_norm.weight"], config))
    q = linear(latent, scope["wq_b.weight"]).unflatten(-1, (config.num_attention_heads, -1))
    return rotate(q, rope), latent


def window_kv(x8: Tensor, scope: Scope, rope: Rope, config: ModelConfig) -> Tensor:
    """Window rows as attention reads them, [N, D] bf16."""
    kv = norm(linear(x8, scope["wkv.weight"]), scope["kv_norm.weight"], config)
    return fp8(rotate(kv, rope))


def compress(
    x: Tensor, scope: Scope, plan: LayerPlan, rope: Rope, config: ModelConfig
) -> tuple[Tensor, Tensor]:
    """Main entries [N / ratio, D] and index keys [N / ratio, Di] of x [N, d] bf16.

    ``rope``: of the entries' first tokens.  The index branch gets gradients only from its own loss.
    """
    wkv = scope["compressor.wkv.weight"]
    if plan.ratio == 1:
        pooled = linear(x, wkv)
    else:
        key_gate = linear(x.float(), torch.cat([wkv, scope["compressor.wgate.weight"]]).float())
        pairs = key_gate.view(-1, 2, 2, key_gate.shape[-1] // 2)
        pooled = pool_pairs_reference(pairs[:, 0], pairs[:, 1])
    latent = norm(pooled, scope["compressor.norm.weight"], config)
    key = norm(
        linear(latent.detach(), scope["indexer.wk.weight"]), scope["indexer.k_norm.weight"], config
    )
    return fp4_e4m3(rotate(latent, rope)), fp4(rotate(key, rope))


def index_queries(
    x: Tensor, latent: Tensor, scope: Scope, rope: Rope, config: ModelConfig
) -> tuple[Tensor, Tensor]:
    """Rounded index queries [N, Hi, Di] bf16 and head weights [N, Hi] bf16; detached from the rest."""
    q = linear(latent.detach(), scope["indexer.wq_b.weight"]).unflatten(
        -1, (config.index_n_heads, -1)
    )
    weights = linear(x.detach(), scope["indexer.weights_proj.weight"])
    scale = config.index_head_dim**-0.5 * config.index_n_heads**-0.5
    return fp4(rotate(q, rope)), weights * scale


def attend(
    q: Tensor,
    window: Tensor,
    earliest: Tensor,
    main: Tensor | None,
    picks: Tensor | None,
    sink: Tensor,
    config: ModelConfig,
) -> Tensor:
    """[N, H, D] bf16: attention to window and selected keys in one softmax.

    Shapes: q [B, T, H, D], window [B, T, D], earliest [B, T] first row index of each token's window, main
    [B, M, D] with picks [B, T, K] i64 (-1 = none), or both None.
    """
    batch, length, heads, width = q.shape
    near_scores, hidden, near_keys = _window_scores(q, window, earliest, config)
    if main is None or picks is None:
        picked_keys = q.new_zeros((batch * length, 1, width))
        absent = torch.ones_like(picked_keys[:, :1, :1], dtype=torch.bool)
    else:
        picked_keys, absent = _gather(main, picks), picks.view(-1, 1, picks.shape[-1]) < 0
    picked_scores = torch.bmm(q.view(-1, heads, width), picked_keys.transpose(1, 2))
    near, picked, factor = compiled(pointwise.softmax_parts)(
        near_scores, hidden, picked_scores, absent, sink, width**-0.5
    )
    size = config.sliding_window
    out = torch.bmm(near.view(-1, size * heads, 2 * size), near_keys).view(-1, heads, width)
    out = out.float() + torch.bmm(picked, picked_keys).float()
    return (out * factor).to(torch.bfloat16)


def _window_scores(
    q: Tensor, window: Tensor, earliest: Tensor, config: ModelConfig
) -> tuple[Tensor, Tensor, Tensor]:
    """Raw scores [N, H, 2 W] over the token's block of W tokens and the previous block, a mask [N, 1, 2 W] of
    those outside its window, and the keys [N / W, 2 W, D]."""
    batch, length, heads, width = q.shape
    size = config.sliding_window
    blocks = window.view(batch, length // size, size, width)
    before = functional.pad(blocks, (0, 0, 0, 0, 1, 0))[:, :-1]
    keys = torch.cat([before, blocks], dim=2).flatten(0, 1)
    scores = torch.bmm(q.reshape(-1, size * heads, width), keys.transpose(1, 2))
    position = torch.arange(length, device=q.device).view(1, -1, size, 1)
    key_position = position[:, :, :1] - size + torch.arange(2 * size, device=q.device)
    lowest = torch.maximum(earliest.view(batch, -1, size, 1), position - size + 1)
    hidden = (key_position > position) | (key_position < lowest)
    return scores.view(-1, heads, 2 * size), hidden.view(-1, 1, 2 * size), keys


def _gather(main: Tensor, picks: Tensor) -> Tensor:
    """Gather entries [B, M, D] by picks [B, T, K] -> [B * T, K, D]; absent ones are entry 0."""
    batch, entries, width = main.shape
    first = torch.arange(batch, device=main.device).view(-1, 1, 1) * entries
    rows = (picks.clamp(min=0) + first).flatten()
    return functional.embedding(rows, main.reshape(-1, width)).view(-1, picks.shape[-1], width)


def output(out: Tensor, scope: Scope, rope: Rope, config: ModelConfig) -> Tensor:
    """Output projection of attention: [N, H, D] bf16 -> [N, d] bf16."""
    groups = config.o_groups
    grouped = rotate(out, rope, inverse=True).flatten(1).unflatten(-1, (groups, -1))
    weight = scope["wo_a.weight"].unflatten(0, (groups, -1))
    low_rank = torch.einsum("ngk,grk->ngr", grouped, weight).flatten(1)
    return linear(fp8(low_rank), scope["wo_b.weight"])


def _route(
    x: Tensor, gate: Tensor, bias: Tensor, per_token: int, factor: float
) -> tuple[Tensor, Tensor]:
    scores = softplus(linear(x.float(), gate.float())).sqrt()
    ids = torch.topk(scores + bias, per_token, dim=-1).indices
    weights = scores.gather(1, ids)
    if per_token > 1:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    chosen = torch.zeros_like(scores).scatter(1, ids, weights * factor)
    return chosen, (chosen > 0).float().mean(0)


def moe(
    x: Tensor, scope: Scope, bias: Tensor, per_token: int, config: ModelConfig
) -> tuple[Tensor, Tensor]:
    """[N, d] bf16, and the fraction of tokens routed to each expert, [E] f32."""
    chosen, load = _route(x, scope["gate.weight"], bias, per_token, config.routed_scaling_factor)
    gate_up = torch.cat([scope["experts.w1.weight"], scope["experts.w3.weight"]], dim=1)
    shared = torch.cat([scope["shared_experts.w1.weight"], scope["shared_experts.w3.weight"]])
    gate_up = torch.cat([gate_up, shared[None]]).flatten(0, 1)
    down = torch.cat([scope["experts.w2.weight"], scope["shared_experts.w2.weight"][None]])
    factors = torch.cat([chosen, chosen.new_ones(len(chosen), 1)], dim=1)
    hidden = linear(fp8(x), gate_up).view(factors.numel(), -1)
    hidden = compiled(pointwise.swiglu)(hidden, config.swiglu_limit, factors.flatten())
    return linear(fp8(hidden).view(len(x), -1), down.transpose(0, 1).flatten(1)), load
