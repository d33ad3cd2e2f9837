"""``EncoderOutput``: a forward pass between the encoder layers and the decoder layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from deepinfer.engine.execution.batch import ForwardBatch

from .global_kv import GlobalKV
from .residual import Residual
from .tokens import Tokens


@dataclass(frozen=True, slots=True, eq=False)
class EncoderOutput:
    """T tokens, d width.  ``residual`` and ``taps`` (by position in ``dspark_target_layer_ids``,
    [T, d] bf16) were computed by the encoder layers; the rest is derived from the batch.

    lookback [T, n-gram size] i64: compressed ids of each token and its predecessors.
    """

    batch: ForwardBatch
    tokens: Tokens
    kv: GlobalKV
    lookback: Tensor
    residual: Residual
    taps: Mapping[int, Tensor]
