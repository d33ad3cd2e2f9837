"""Attention of one layer: projections, window and compressed keys, grouped output projection."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad

from deepinfer.kernels.attention import sparse_attention
from deepinfer.kernels.gemm import Weight, native_weight, quantized_linear
from deepinfer.kernels.norm import NormedRows
from deepinfer.kernels.rows import split_projection, store_latents

from .compressor import Compressor
from .global_kv import GlobalKV
from .indexer import Indexer
from .layer_tensors import LayerTensors
from .output_projection import OutputProjection
from .rotary import rope_key
from .schedule import LayerPlan
from .tokens import Tokens
from .window import Window

if TYPE_CHECKING:
    from .config import ModelConfig


class Attention:
    """T tokens, H heads, D latent width.  ``plan`` says what the layer stores and reads."""

    def __init__(self, config: ModelConfig, plan: LayerPlan, tensors: LayerTensors) -> None:
        self.plan = plan
        self.eps = config.rms_norm_eps
        self.scale = config.head_dim**-0.5
        self.q_norm_eps = config.rms_norm_eps if config.q_head_norm else None
        share, part = tensors.share, tensors.share.tensor_rank
        self.q_shape = (config.num_attention_heads // share.tensor_size, config.head_dim)
        wq_a_kv = Weight.concat([tensors.weight("attn.wq_a"), tensors.weight("attn.wkv")])
        self.wq_a_kv = native_weight(wq_a_kv)
        self.q_norm = tensors["attn.q_norm.weight"]
        self.kv_norm = tensors["attn.kv_norm.weight"]
        wq_b = tensors.weight("attn.wq_b").split_rows(share.tensor_size)[part]
        self.wq_b = native_weight(wq_b)
        self.project = OutputProjection(config, tensors)
        self.sink = tensors["attn.attn_sink"].chunk(share.tensor_size)[part]
        self.absent_heads = None
        if share.tensor_size > 1 and self.sink.device.type == "cpu":
            # A CPU matmul of fewer heads sums in another order: keep places for the other ranks'.
            before, own = part * self.q_shape[0], self.q_shape[0]
            self.absent_heads = (before, config.num_attention_heads - before - own)
            self.sink = pad(self.sink, self.absent_heads)
        self.compressor = Compressor(config, plan, tensors) if plan.is_kv_source else None
        self.indexer = Indexer(config, plan, tensors) if plan.is_index_source else None

    def __call__(
        self, entered: NormedRows, tokens: Tokens, ring: Tensor, kv: GlobalKV | None
    ) -> Tensor:
        """[T, d] -> [T, d] bf16; stores the window rows in ``ring``.

        New global KV must have been written already (``Compressor.write``).  ``kv`` may be None for
        a layer without compressed keys.
        """
        both = quantized_linear(entered.operand, self.wq_a_kv)
        rope = tokens.rope[rope_key(self.plan)]
        latent_q, window_rows = self._split(both, rope, tokens.window, ring)
        q = torch.unflatten(quantized_linear(latent_q.operand, self.wq_b), -1, self.q_shape)
        if self.absent_heads is not None:
            q = pad(q, (0, 0, *self.absent_heads))
        main_rows = main_index = None
        if kv is not None and self.plan.kv_source is not None:
            assert self.plan.index_source is not None
            if self.indexer is not None:
                kv.picks[self.plan.layer_id] = self.indexer.select(
                    entered.values, latent_q, tokens, kv
                )
            main_index = kv.picks[self.plan.index_source]
            main_rows = kv.main_rows(self.plan.kv_source, self.plan.ratio)
        out = sparse_attention(
            q, window_rows, tokens.window.read_index, main_rows, main_index, self.sink, self.scale,
            rope=rope, piece_keys=tokens.piece_keys, quantized=self.project.takes_quantized,
            q_norm_eps=self.q_norm_eps,
        )  # fmt: skip
        if self.absent_heads is not None:
            assert isinstance(out, Tensor)
            out = out.narrow(1, self.absent_heads[0], self.q_shape[0])
        return self.project(out)

    def store_window(
        self, x: Tensor, rope: tuple[Tensor, Tensor], ring: Tensor, index: Tensor
    ) -> None:
        """Store only the window rows of x [T, d] bf16, in the flat ring at ``index`` [T] i64."""
        keys = quantized_linear(x, self.wq_a_kv)[:, len(self.q_norm) :]
        store_latents(keys, rope, "window", ring, index, weight=self.kv_norm, eps=self.eps)

    def _split(
        self, both: Tensor, rope: tuple[Tensor, Tensor], window: Window, ring: Tensor
    ) -> tuple[NormedRows, Tensor]:
        """The latent queries, and the window rows that ``window.read_index`` refers to, including
        those of this pass, which are stored."""
        rows, own = window.begin(ring)
        latent_q = split_projection(
            both, rope, rows, own, q_norm=self.q_norm, kv_norm=self.kv_norm, eps=self.eps,
            linear=self.wq_b,
        )  # fmt: skip
        window.end(ring, rows)
        return latent_q, rows
