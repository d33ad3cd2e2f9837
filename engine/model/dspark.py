"""Draft stages: propose a block of tokens in one pass, then correct it token by token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from deepinfer.engine.cache.kv_cache import KVCache, ring_size
from deepinfer.engine.execution.batch import DraftOutput
from deepinfer.kernels.dspark import draft_confidence, markov_logits
from deepinfer.kernels.gemm import Weight, fp32_linear, native_weight, quantized_linear
from deepinfer.kernels.hyper_connection import collapse_streams
from deepinfer.kernels.norm import rms_norm

from .block import Block
from .layer_tensors import LayerTensors
from .residual import Residual, Settled
from .ring_writes import ring_writes
from .rotary import Rotary, rope_key
from .streams import embedded_streams
from .tokens import Tokens
from .window import block_window

if TYPE_CHECKING:
    from .config import ModelConfig

DraftSampler = Callable[[Tensor, Tensor], Tensor]
"""Logits [R, V] f32 and positions [R] i64 of the tokens to draw -> token ids [R] i64."""


def greedy_sampler(logits: Tensor, positions: Tensor) -> Tensor:
    """The most likely token; the lowest id wins a tie."""
    return logits.argmax(-1)


class DraftModel:
    """R requests, B tokens per block, d width, V vocabulary, r Markov rank."""

    def __init__(
        self,
        config: ModelConfig,
        root: LayerTensors,
        embed: Tensor,
        head: Weight,
        rotary: Rotary,
    ) -> None:
        self.config = config
        self.embed = embed
        self.head = head
        self.rotary = rotary
        stages = [root.under(f"mtp.{stage}.") for stage in range(len(config.draft_stages))]
        self.blocks = [
            Block(config, plan, stage)
            for plan, stage in zip(config.draft_stages, stages, strict=True)
        ]
        self.main_proj = native_weight(stages[0].weight("main_proj"))
        self.main_norm = stages[0]["main_norm.weight"]
        self.norm = stages[-1]["norm.weight"]
        self.markov_embed = stages[-1]["markov_head.embed.weight"]
        self.markov_head = stages[-1].weight("markov_head.head")
        self.confidence = stages[-1].weight("confidence_head.proj")

    def seed(
        self,
        main_hidden: Tensor,
        positions: Tensor,
        slots: Tensor,
        query_lens: Sequence[int],
        cache: KVCache,
    ) -> None:
        """Store each stage's window rows for verified tokens; see ``Model.seed_draft``."""
        size = ring_size(self.config)
        kept, slots = ring_writes(slots, query_lens, (), size)
        if kept is not None:
            main_hidden, positions = main_hidden[kept], positions[kept]
        projected = quantized_linear(main_hidden, self.main_proj)
        context = rms_norm(projected, self.main_norm, self.config.rms_norm_eps)
        index = slots * size + positions % size
        for stage, block in enumerate(self.blocks):
            rope = self.rotary.table(block.plan, positions)
            ring = cache.draft[stage].flatten(0, 1)
            block.attention.store_window(context, rope, ring, index)

    def draft(
        self,
        anchor_token_ids: Tensor,
        positions: Tensor,
        slots: Tensor,
        start: Tensor,
        cache: KVCache,
        sample: DraftSampler,
        depth: int,
        keeps_logits: bool,
    ) -> DraftOutput:
        """See ``Model.draft``."""
        hidden = self._block_hidden(anchor_token_ids, positions, slots, start, cache, depth)
        normed = rms_norm(hidden, self.norm, self.config.rms_norm_eps)
        base = fp32_linear(normed.transpose(0, 1).flatten(0, 1), self.head)
        base = torch.unflatten(base, 0, (depth, len(hidden)))
        previous = anchor_token_ids
        ids, kept = [], []
        for step in range(depth):
            logits = markov_logits(base[step], self.markov_embed[previous], self.markov_head)
            previous = sample(logits, positions + 1 + step)
            ids.append(previous)
            if keeps_logits:
                kept.append(logits)
        drafts = torch.stack(ids, dim=1)
        return DraftOutput(
            token_ids=drafts,
            logits=torch.stack(kept, dim=1) if keeps_logits else None,
            confidence=draft_confidence(
                hidden, anchor_token_ids, drafts, self.markov_embed, self.confidence
            ),
        )

    def _block_hidden(
        self,
        anchors: Tensor,
        positions: Tensor,
        slots: Tensor,
        start: Tensor,
        cache: KVCache,
        depth: int,
    ) -> Tensor:
        """Output of the stages for the first ``depth`` of [anchor, noise, noise, ...], [R, depth,
        d] bf16.  All tokens of a block attend to each other, so only the last stage can skip those
        beyond ``depth``."""
        config = self.config
        size = config.dspark_block_size
        token_ids = anchors.new_full((len(anchors), size), config.dspark_noise_token_id)
        token_ids[:, 0] = anchors
        steps = torch.arange(size, device=anchors.device)
        block_positions = (positions[:, None] + steps).flatten()
        tokens = Tokens(
            positions=block_positions,
            request_rows=torch.arange(len(anchors), device=anchors.device).repeat_interleave(size),
            places=torch.arange(len(block_positions), device=anchors.device),
            offsets=steps.repeat(len(anchors)),
            slots=slots.repeat_interleave(size),
            query_lens=(size,) * len(anchors),
            rope={
                rope_key(block.plan): self.rotary.table(block.plan, block_positions)
                for block in self.blocks[:1]
            },
            window=block_window(
                anchors=positions,
                start=start,
                slots=slots,
                block_size=size,
                width=config.sliding_window,
                ring_size=ring_size(config),
            ),
        )
        streams = embedded_streams(self.embed, token_ids.flatten(), config.hc_mult)
        residual: Residual = Settled(*streams)
        for stage, block in enumerate(self.blocks):
            entered, ring = block.enter(residual), cache.draft[stage]
            if block is self.blocks[-1] and depth < size:
                rope, index = tokens.rope[rope_key(block.plan)], tokens.window.write_index
                block.attention.store_window(entered.rows.values, rope, ring.flatten(0, 1), index)
                tokens, kept = tokens.first_of_each(size, depth)
                entered = entered.at(kept)
            residual = block.run(entered, tokens, ring, None)
        last = residual.settle()
        return collapse_streams(last.streams, last.pre).view(len(anchors), depth, -1)
