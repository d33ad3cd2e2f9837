"""The differentiable backbone: from packed rows to hidden states and auxiliary results."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional
from training import layers, pointwise
from training.batches import Batch
from training.index_loss import IndexInput, index_loss, select
from training.layers import Scope
from training.parameters import Weights
from training.straight_through import compiled, fp8

from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.model.engram import hash_multipliers
from deepinfer.engine.model.rotary import RopeTables, Rotary, rope_key
from deepinfer.engine.model.schedule import LayerPlan
from deepinfer.engine.model.streams import initial_streams
from deepinfer.kernels.engram.reference import engram_hash_reference


@dataclass(slots=True)
class Trace:
    """Results of a forward pass that later layers and the losses use.

    hidden    [N, d] bf16 after the final norm: the head's input
    taps      [N, taps * d] bf16, the draft stages' input
    loads     fraction of tokens per expert, by layer, each [E] f32
    index_losses  one per index source, if requested
    """

    hidden: Tensor = field(init=False)
    taps: dict[int, Tensor] = field(default_factory=dict)
    loads: dict[int, Tensor] = field(default_factory=dict)
    index_losses: list[Tensor] = field(default_factory=list)
    main: dict[int, Tensor] = field(default_factory=dict)
    keys: dict[int, Tensor] = field(default_factory=dict)
    picks: dict[int, Tensor] = field(default_factory=dict)
    candidates: Tensor | None = None

    @property
    def main_hidden(self) -> Tensor:
        return torch.cat([self.taps[tap] for tap in range(len(self.taps))], dim=-1)


class Backbone:
    """B rows of T tokens, N = B * T, S streams, d width."""

    def __init__(self, config: ModelConfig, token_map: Tensor, device: torch.device) -> None:
        self.config = config
        self.device = device
        self.rotary = Rotary(config, device)
        self.token_map = token_map.to(device=device, dtype=torch.int64)
        self.primes = [torch.tensor(primes, device=device) for primes in config.engram_primes]
        self.multipliers = [
            torch.from_numpy(hash_multipliers(config, layer)).to(device)
            for layer in config.engram_layer_ids
        ]

    def __call__(
        self, weights: Weights, biases: Weights, batch: Batch, *, index_sample: Tensor | None = None
    ) -> Trace:
        """``weights``: from ``effective_weights``; ``biases``: the routers', f32.  ``index_sample`` [Q]: row indices
        at which to compute the indexers' losses."""
        trace = Trace()
        row_index = torch.arange(batch.tokens.shape[1], device=self.device)
        tables = self.rotary.tables((row_index - batch.starts).flatten())
        streams, pre = initial_streams(
            functional.embedding(batch.tokens.flatten(), weights["embed.weight"]),
            self.config.hc_mult,
        )
        for plan in self.config.layers:
            if plan.engram_index is not None:
                scope = Scope(weights, f"layers.{plan.layer_id}.engram")
                streams = self._engram(streams, scope, plan.engram_index, batch)
            if plan.tap is not None:
                trace.taps[plan.tap] = streams.float().mean(1).to(torch.bfloat16)
            streams, pre = self.block(
                streams, pre, plan, weights, biases, batch, tables, trace, index_sample
            )
        hidden = layers.collapse(streams, pre)
        trace.hidden = layers.norm(hidden, weights["norm.weight"], self.config)
        return trace

    def block(
        self,
        streams: Tensor,
        pre: Tensor,
        plan: LayerPlan,
        weights: Weights,
        biases: Weights,
        batch: Batch,
        tables: RopeTables,
        trace: Trace,
        index_sample: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """One layer: streams [N, S, d] bf16 and pre [N, S] f32 -> the same for the next layer."""
        prefix = f"layers.{plan.layer_id}"
        scope = Scope(weights, prefix)
        attn_mix = layers.mix(streams, scope, "hc_attn", self.config)
        x = layers.norm(layers.collapse(streams, pre), scope["attn_norm.weight"], self.config)
        attended = self._attention(x, weights, plan, batch, tables, trace, index_sample)
        streams = layers.expand(streams, attended, attn_mix)
        ffn_mix = layers.mix(streams, scope, "hc_ffn", self.config)
        x = layers.collapse(streams, attn_mix[0])
        x = layers.norm(x, scope["ffn_norm.weight"], self.config)
        moved, trace.loads[plan.layer_id] = layers.moe(
            x, Scope(weights, f"{prefix}.ffn"), biases[f"{prefix}.ffn.gate.bias"],
            plan.num_experts_per_tok, self.config,
        )  # fmt: skip
        return layers.expand(streams, moved, ffn_mix), ffn_mix[0]

    def _engram(self, streams: Tensor, scope: Scope, engram_index: int, batch: Batch) -> Tensor:
        rows = self.engram_rows(batch, engram_index)
        memory = functional.embedding(rows, scope["embed.weight"]).flatten(1)
        key_value = layers.linear(fp8(memory), scope["wkv.weight"])
        return compiled(pointwise.engram_gate)(
            streams, key_value, scope["q_weight"], scope["k_weight"]
        )

    def engram_rows(self, batch: Batch, engram_index: int) -> Tensor:
        """[N, C] i64 table rows; n-grams do not cross document boundaries."""
        config, compressed = self.config, self.token_map[batch.tokens]
        length = compressed.shape[1]
        position = torch.arange(length, device=self.device)[:, None]
        source = position - torch.arange(config.engram_max_ngram_size, device=self.device)
        lookback = compressed[:, source.clamp(min=0)]
        absent = source < batch.starts[..., None]
        lookback = lookback.masked_fill(absent, config.engram_pad_token_id).flatten(0, 1)
        primes = self.primes[engram_index]
        offsets = primes.flatten().cumsum(0).view_as(primes) - primes
        return engram_hash_reference(lookback, self.multipliers[engram_index], primes, offsets)

    def _attention(
        self,
        x: Tensor,
        weights: Weights,
        plan: LayerPlan,
        batch: Batch,
        tables: RopeTables,
        trace: Trace,
        index_sample: Tensor | None,
    ) -> Tensor:
        config, shape = self.config, batch.tokens.shape
        scope = Scope(weights, f"layers.{plan.layer_id}.attn")
        rope = tables[rope_key(plan)]
        x8 = fp8(x)
        q, latent = layers.queries(x8, scope, rope, config)
        window = layers.window_kv(x8, scope, rope, config)
        q_rows = q.unflatten(0, shape)
        if plan.is_kv_source:
            entry_rope = (rope[0][:: plan.ratio], rope[1][:: plan.ratio])
            main, keys = layers.compress(x, scope, plan, entry_rope, config)
            trace.main[plan.layer_id] = main.unflatten(0, (shape[0], -1))
            trace.keys[plan.layer_id] = keys.unflatten(0, (shape[0], -1))
        main_rows = picks = None
        if plan.kv_source is not None and plan.index_source is not None:
            main_rows = trace.main[plan.kv_source]
            if plan.is_index_source:
                index = IndexInput(
                    *(
                        t.unflatten(0, shape)
                        for t in layers.index_queries(x, latent, scope, rope, config)
                    ),
                    trace.keys[plan.kv_source],
                )
                trace.picks[plan.layer_id], kept = select(
                    index, batch.starts, plan, trace.candidates, config
                )
                trace.candidates = kept if kept is not None else trace.candidates
                if index_sample is not None:
                    trace.index_losses.append(
                        index_loss(index, q_rows, main_rows, batch.starts, index_sample, plan)
                    )
            picks = trace.picks[plan.index_source]
        earliest = batch.segments if plan.is_decoder else batch.starts
        out = layers.attend(
            q_rows,
            window.unflatten(0, shape),
            earliest,
            main_rows,
            picks,
            scope["attn_sink"],
            config,
        )
        return layers.output(out, scope, rope, config)
