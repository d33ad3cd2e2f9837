"""One layer: attention and MoE, each between collapsing and expanding the residual streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from deepinfer.kernels.gemm import HopperWeight, Weight
from deepinfer.kernels.hyper_connection import (
    Entrance,
    Mixer,
    advance_streams,
    enter_streams,
)

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

    The coefficients that collapse the streams before a sub-block come from the previous one.
    """

    def __init__(self, config: ModelConfig, plan: LayerPlan, tensors: LayerTensors) -> None:
        self.plan = plan
        self.attention = Attention(config, plan, tensors)
        self.moe = MoE(config, plan, tensors)
        self._attn = _way_in(config, tensors, "attn", self.attention.wq_a_kv)
        self._ffn = _way_in(config, tensors, "ffn", self.moe.shared_gate_up)

    def enter(self, residual: Residual) -> Entered:
        """Finish the previous block and enter attention."""
        if isinstance(residual, Pending):
            streams, entry = advance_streams(
                residual.streams, residual.output, residual.mix, *self._attn
            )
        else:
            streams = residual.streams
            entry = enter_streams(streams, residual.pre, *self._attn)
        return Entered(streams, *entry)

    def write_global_kv(self, x: Tensor, tokens: Tokens, kv: GlobalKV) -> None:
        """Store the compressed entries that these tokens complete, if this layer produces any;
        x [T, d] bf16, the values of ``Entered.rows``."""
        if self.attention.compressor is not None:
            self.attention.compressor.write(x, tokens, kv)

    def run(self, entered: Entered, tokens: Tokens, ring: Tensor, kv: GlobalKV | None) -> Pending:
        """Attention and MoE; new global KV must have been written before."""
        attended = self.attention(entered.rows, tokens, ring, kv)
        streams, entry = advance_streams(entered.streams, attended, entered.mix, *self._ffn)
        return Pending(streams, self.moe(entry.rows, tokens.is_image), entry.mix)


def _way_in(
    config: ModelConfig, tensors: LayerTensors, part: str, linear: Weight | HopperWeight
) -> tuple[Mixer, Entrance]:
    """How a sub-block, whose first GEMM is ``linear``, reads the streams."""
    mixer = Mixer(
        Weight(tensors[f"hc_{part}_fn"]),
        tensors[f"hc_{part}_scale"],
        tensors[f"hc_{part}_base"],
        config.hc_sinkhorn_iters,
        config.hc_eps,
    )
    return mixer, Entrance(tensors[f"{part}_norm.weight"], config.rms_norm_eps, linear)
