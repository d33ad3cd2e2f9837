"""One layer: attention and MoE, each between a collapse and an expansion of the streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from deepinfer.kernels.gemm import Weight
from deepinfer.kernels.hyper_connection import (
    HyperMix,
    advance_streams,
    collapse_streams,
    expand_streams,
    hyper_mix,
)
from deepinfer.kernels.norm import rms_norm

from .attention import Attention
from .global_kv import GlobalKV
from .layer_tensors import LayerTensors
from .moe import MoE
from .schedule import LayerPlan
from .tokens import Tokens

if TYPE_CHECKING:
    from .config import ModelConfig


class Block:
    """T tokens, S streams, d width.

    The weights that collapse the streams before a sub-block were computed by the one before it:
    ``pre`` travels with the streams.
    """

    def __init__(self, config: ModelConfig, plan: LayerPlan, tensors: LayerTensors) -> None:
        self.plan = plan
        self.eps = config.rms_norm_eps
        self.attn_norm = tensors["attn_norm.weight"]
        self.ffn_norm = tensors["ffn_norm.weight"]
        self.attn_mix = HyperConnection(config, tensors, "hc_attn")
        self.ffn_mix = HyperConnection(config, tensors, "hc_ffn")
        self.attention = Attention(config, plan, tensors)
        self.moe = MoE(config, plan, tensors)

    def attention_input(self, streams: Tensor, pre: Tensor) -> Tensor:
        """streams [T, S, d] bf16 and pre [T, S] f32 -> [T, d] bf16, normalised."""
        return rms_norm(collapse_streams(streams, pre), self.attn_norm, self.eps)

    def write_global_kv(self, streams: Tensor, pre: Tensor, tokens: Tokens, kv: GlobalKV) -> None:
        """Store the compressed entries that these tokens complete, if this layer produces any."""
        if self.attention.compressor is not None:
            self.attention.compressor.write(self.attention_input(streams, pre), tokens, kv)

    def __call__(
        self, streams: Tensor, pre: Tensor, tokens: Tokens, ring: Tensor, kv: GlobalKV | None
    ) -> tuple[Tensor, Tensor]:
        """The streams [T, S, d] bf16 and the next block's ``pre`` [T, S] f32."""
        mix = self.attn_mix(streams)
        attended = self.attention(self.attention_input(streams, pre), tokens, ring, kv)
        streams, ffn_mix, x = self.ffn_mix.advance(streams, attended, mix)
        x = rms_norm(x, self.ffn_norm, self.eps)
        streams = expand_streams(streams, self.moe(x, tokens.is_image), ffn_mix)
        return streams, ffn_mix.pre


class HyperConnection:
    """The mixing weights of one sub-block."""

    def __init__(self, config: ModelConfig, tensors: LayerTensors, name: str) -> None:
        self._parameters = (
            Weight(tensors[f"{name}_fn"]),
            tensors[f"{name}_scale"],
            tensors[f"{name}_base"],
        )
        self.iterations = config.hc_sinkhorn_iters
        self.eps = config.hc_eps

    def __call__(self, streams: Tensor) -> HyperMix:
        return hyper_mix(streams, *self._parameters, iterations=self.iterations, eps=self.eps)

    def advance(
        self, streams: Tensor, output: Tensor, mix: HyperMix
    ) -> tuple[Tensor, HyperMix, Tensor]:
        """End the sub-block before this one: see ``advance_streams``."""
        return advance_streams(
            streams, output, mix, *self._parameters, iterations=self.iterations, eps=self.eps
        )
