"""One layer: attention and MoE, each between a collapse and an expansion of the streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from deepinfer.kernels.gemm import Weight
from deepinfer.kernels.hyper_connection import (
    HyperMix,
    advance_streams,
    collapse_streams,
    hyper_mix,
)
from deepinfer.kernels.norm import rms_norm

from .attention import Attention
from .global_kv import GlobalKV
from .layer_tensors import LayerTensors
from .moe import MoE
from .residual import Entered, Pending, Residual
from .schedule import LayerPlan
from .tokens import Tokens

if TYPE_CHECKING:
    from .config import ModelConfig


class Block:
    """T tokens, S streams, d width.

    The weights that collapse the streams before a sub-block were computed by the one before it.
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

    def enter(self, residual: Residual) -> Entered:
        """End the block before this one and begin with attention."""
        if isinstance(residual, Pending):
            streams, mix, x = self.attn_mix.advance(residual.streams, residual.output, residual.mix)
        else:
            streams = residual.streams
            mix, x = self.attn_mix(streams), collapse_streams(streams, residual.pre)
        return Entered(streams, mix, rms_norm(x, self.attn_norm, self.eps))

    def write_global_kv(self, x: Tensor, tokens: Tokens, kv: GlobalKV) -> None:
        """Store the compressed entries that these tokens complete, if this layer produces any;
        x [T, d] bf16 as in ``Entered``."""
        if self.attention.compressor is not None:
            self.attention.compressor.write(x, tokens, kv)

    def run(self, entered: Entered, tokens: Tokens, ring: Tensor, kv: GlobalKV | None) -> Pending:
        """Attention and MoE; new global KV must have been written."""
        attended = self.attention(entered.x, tokens, ring, kv)
        streams, ffn_mix, x = self.ffn_mix.advance(entered.streams, attended, entered.mix)
        x = rms_norm(x, self.ffn_norm, self.eps)
        return Pending(streams, self.moe(x, tokens.is_image), ffn_mix)


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
