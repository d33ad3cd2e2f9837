"""The text model: one forward pass over any mix of prompt chunks, decode and verify steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deepinfer.engine.cache.kv_cache import KVCache, ring_size
from deepinfer.engine.execution.batch import DraftOutput, ForwardBatch, ForwardOutput
from deepinfer.errors import ConfigError
from deepinfer.kernels.gemm import fp32_linear
from deepinfer.kernels.hyper_connection import collapse_streams
from deepinfer.kernels.norm import rms_norm

from .block import Block
from .config import ModelConfig
from .decoder_input import DecoderInput
from .dspark import DraftModel, DraftSampler, greedy_sampler
from .encoder_output import EncoderOutput
from .engram import Engram, read_history
from .global_kv import GlobalKV
from .layer_tensors import LayerTensors
from .residual import Entered, Residual, Settled
from .rotary import Rotary
from .share import WHOLE_MODEL, Share
from .streams import embedded_streams
from .tokens import Tokens, narrow_batch
from .window import Window, causal_window


class Model:
    """Backbone and, if the checkpoint has them, draft stages.

    T tokens, S streams, d width, V vocabulary.  Every token's results have the same bits in any
    batch and however a prompt is chunked (on a CPU; see ``docs/numerics.md``).
    """

    def __init__(
        self,
        config: ModelConfig,
        tensors: Mapping[str, Tensor],
        *,
        device: torch.device | str = "cpu",
        token_map: Tensor | NDArray[np.integer[Any]] | None = None,
        share: Share = WHOLE_MODEL,
        experts_as_fp8: bool = False,
        output_as_fp8: bool = False,
    ) -> None:
        """tensors         by official name, as stored on disk; moved to ``device`` one by one, but
                        Engram tables are used where they are
        token_map       [V] int, the compressed id of each token; required by models with Engram
        share           this rank's part of each layer; ``tensors`` may lack the rest
        experts_as_fp8  store the routed experts' FP4 weights as FP8 on NVIDIA SM90: twice the
                        memory, faster with many rows per expert, bit-identical results
        output_as_fp8   quantize the input of the first projection after attention to FP8; results
                        differ

        Raises: ConfigError without a matching ``token_map``; CheckpointError for a missing tensor.
        """
        device = torch.device(device)
        root = LayerTensors(tensors, "", device, share, experts_as_fp8, output_as_fp8)
        self.config = config
        self.device = device
        self.rotary = Rotary(config, device)
        self.embed = root["embed.weight"]
        self.norm = root["norm.weight"]
        self.head = root.weight("head")
        plans = [plan for plan in config.layers if share.has_layer(plan)]
        layers = {plan.layer_id: root.under(f"layers.{plan.layer_id}.") for plan in plans}
        self.blocks = [Block(config, plan, layers[plan.layer_id]) for plan in plans]
        self.engrams = {
            layer_id: Engram(config, index, layers[layer_id])
            for index, layer_id in enumerate(config.engram_layer_ids)
            if layer_id in layers
        }
        self.token_map = _checked_token_map(config, token_map, device)
        self.draft_model = (
            DraftModel(config, root, self.embed, self.head, self.rotary)
            if config.num_nextn_predict_layers and plans[-1].is_decoder
            else None
        )

    @property
    def can_capture(self) -> bool:
        """Whether passes can be CUDA graphs, which they can if the host takes no part in them."""
        return all(engram.is_read_by_kernels for engram in self.engrams.values())

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, cache: KVCache) -> ForwardOutput:
        """Run the tokens of a batch, write their cached state, return logits and draft taps.

        Layers before the split layer run on all tokens.  The decoder layers run only on tokens at
        or after their request's ``decoder_start``; for the others, the split layer only stores its
        compressed entries.
        """
        return self.decode(self.encode(batch, cache), cache)

    @torch.inference_mode()
    def encode(self, batch: ForwardBatch, cache: KVCache) -> EncoderOutput:
        """The encoder layers (those before the split layer) that this rank has."""
        tokens, kv = self._begin(batch, batch.encoder_start, cache)
        lookback = self._lookback(batch, tokens, cache)
        streams = embedded_streams(self.embed, batch.token_ids, self.config.hc_mult)
        residual: Residual = Settled(*streams)
        taps: dict[int, Tensor] = {}
        for block in self.blocks:
            if block.plan.is_decoder:
                break
            entered = self._enter(block, residual, lookback, tokens)
            block.write_global_kv(entered.rows.values, tokens, kv)
            if block.plan.tap is not None:
                taps[block.plan.tap] = _tapped(entered)
            residual = block.run(entered, tokens, cache.window[block.plan.layer_id], kv)
        return EncoderOutput(batch, tokens, kv, lookback, residual, taps)

    @torch.inference_mode()
    def decode(self, encoded: EncoderOutput, cache: KVCache) -> ForwardOutput:
        """The decoder layers (from the split layer on), and the head."""
        return self.finish(self.enter_decoder(encoded, cache), cache)

    @torch.inference_mode()
    def enter_decoder(self, encoded: EncoderOutput, cache: KVCache) -> DecoderInput:
        """Store the split layer's compressed entries, and keep only the decoder's tokens."""
        batch, tokens, kv, lookback = encoded.batch, encoded.tokens, encoded.kv, encoded.lookback
        split = next(block for block in self.blocks if block.plan.is_decoder)
        entered = self._enter(split, encoded.residual, lookback, tokens)
        split.write_global_kv(entered.rows.values, tokens, kv)
        batch, kept = narrow_batch(batch)
        if kept is None:
            tokens = tokens.starting_at(self._window(batch, batch.decoder_start))
            main_rows = torch.arange(len(batch.token_ids), device=self.device)
            return DecoderInput(
                batch, main_rows, lookback, entered, dict(encoded.taps), (tokens, kv)
            )
        taps = {tap: hidden[kept] for tap, hidden in encoded.taps.items()}
        return DecoderInput(batch, kept, lookback[kept], entered.at(kept), taps)

    @torch.inference_mode()
    def finish(self, start: DecoderInput, cache: KVCache) -> ForwardOutput:
        """The decoder layers on the remaining tokens, and the head."""
        batch, entered, taps = start.batch, start.entered, dict(start.taps)
        blocks = [block for block in self.blocks if block.plan.is_decoder]
        residual: Residual = Settled(entered.streams, entered.mix.pre)
        if len(start.main_rows):
            tokens, kv = start.begun or self._begin(batch, batch.decoder_start, cache)
            for block in blocks:
                if block is not blocks[0]:
                    entered = self._enter(block, residual, start.lookback, tokens)
                    block.write_global_kv(entered.rows.values, tokens, kv)
                if block.plan.tap is not None:
                    taps[block.plan.tap] = _tapped(entered)
                residual = block.run(entered, tokens, cache.window[block.plan.layer_id], kv)
        else:
            self.assist(blocks[0].plan.layer_id)
        last, wanted = residual.settle(), batch.logit_rows
        return ForwardOutput(
            logits=self._logits(last.streams[wanted], last.pre[wanted], batch.logits_out),
            main_hidden=self._main_hidden(taps, len(start.main_rows)),
            main_rows=start.main_rows,
        )

    @torch.inference_mode()
    def seed_draft(
        self,
        main_hidden: Tensor,
        positions: Tensor,
        state_slots: Tensor,
        query_lens: Sequence[int],
        cache: KVCache,
    ) -> None:
        """Feed verified tokens to the draft stages.

        Shapes: main_hidden [M, taps * d] bf16 from ``forward``, positions [M] i64, state_slots [M]
        i64; ``query_lens``: how many of the M tokens each request has, request by request.
        Each token must be given once, before any draft that starts after it.
        """
        self._drafts().seed(main_hidden, positions, state_slots, query_lens, cache)

    @torch.inference_mode()
    def draft(
        self,
        anchor_token_ids: Tensor,
        positions: Tensor,
        state_slots: Tensor,
        draft_start: Tensor,
        cache: KVCache,
        sample: DraftSampler = greedy_sampler,
        depth: int | None = None,
        keeps_logits: bool = True,
    ) -> DraftOutput:
        """Propose the ``depth`` tokens after each anchor, by default ``dspark_block_size``.  A
        smaller depth costs less and gives the same first drafts.

        Shapes: all [R] i64: ``anchor_token_ids`` the newest token, whose position in ``positions``
        the backbone has not run yet; ``draft_start`` the first position that was ever seeded.
        ``sample`` maps logits [R, V] f32 and the positions [R] of the sampled tokens to ids [R].
        """
        depth = self.config.dspark_block_size if depth is None else depth
        return self._drafts().draft(
            anchor_token_ids, positions, state_slots, draft_start, cache, sample, depth,
            keeps_logits,
        )  # fmt: skip

    def assist(self, first_layer: int = 0) -> None:
        """Take part, without tokens, in other ranks' pass from ``first_layer`` on."""
        for block in self.blocks:
            if block.plan.layer_id >= first_layer:
                block.moe.routed.assist()

    def assist_draft(self) -> None:
        """Take part, without requests, in other ranks' drafting."""
        for block in self._drafts().blocks:
            block.moe.routed.assist()

    def _enter(self, block: Block, residual: Residual, lookback: Tensor, tokens: Tokens) -> Entered:
        engram = self.engrams.get(block.plan.layer_id)
        if engram is not None:
            residual = engram(residual.settle(), lookback, tokens.is_image)
        return block.enter(residual)

    def _begin(self, batch: ForwardBatch, start: Tensor, cache: KVCache) -> tuple[Tokens, GlobalKV]:
        tokens = Tokens.of_batch(
            batch,
            self._window(batch, start),
            self.rotary,
            image_token_id=self.config.image_token_id,
        )
        return tokens, GlobalKV(batch=batch, cache=cache, rotary=self.rotary)

    def _window(self, batch: ForwardBatch, start: Tensor) -> Window:
        return causal_window(
            positions=batch.positions,
            request_rows=batch.request_rows,
            first=batch.first,
            start=start,
            slots=batch.state_slots,
            query_lens=batch.query_lens,
            ring_saves=batch.ring_saves,
            width=self.config.sliding_window,
            ring_size=ring_size(self.config),
        )

    def _lookback(self, batch: ForwardBatch, tokens: Tokens, cache: KVCache) -> Tensor:
        """Compressed ids of each token and its predecessors, [T, n-gram size] i64."""
        return read_history(
            cache.history,
            self.token_map[batch.token_ids],
            tokens,
            batch.encoder_start,
            size=self.config.engram_max_ngram_size,
            pad=self.config.engram_pad_token_id,
        )

    def _logits(self, streams: Tensor, pre: Tensor, out: Tensor | None) -> Tensor:
        hidden = rms_norm(collapse_streams(streams, pre), self.norm, self.config.rms_norm_eps)
        return fp32_linear(hidden, self.head, out=out)

    def _main_hidden(self, taps: Mapping[int, Tensor], num_tokens: int) -> Tensor:
        count = len(self.config.dspark_target_layer_ids)
        if len(taps) == count and count:
            return torch.cat([taps[tap] for tap in range(count)], dim=-1)
        return self.embed.new_empty(num_tokens, count * self.config.hidden_size)

    def _drafts(self) -> DraftModel:
        if self.draft_model is None:
            raise ConfigError(
                "this checkpoint has no draft stages (num_nextn_predict_layers is 0): "
                "disable speculation"
            )
        return self.draft_model


def _tapped(entered: Entered) -> Tensor:
    """The tap of a layer's input for the draft stages, [T, d] bf16; summed in fp32."""
    return entered.streams.mean(1)


def _checked_token_map(
    config: ModelConfig, token_map: Tensor | NDArray[np.integer[Any]] | None, device: torch.device
) -> Tensor:
    """[V] i64; the identity for models without Engram, which do not use it."""
    if not config.engram_layer_ids:
        return torch.arange(config.vocab_size, device=device)
    if token_map is None:
        raise ConfigError("token_map is missing: this model's Engram layers need it")
    token_map = torch.as_tensor(token_map)
    if token_map.shape != (config.vocab_size,):
        raise ConfigError(
            f"token_map has shape {tuple(token_map.shape)}, expected ({config.vocab_size},): "
            "one compressed id per token of the vocabulary"
        )
    return token_map.to(device=device, dtype=torch.int64)
