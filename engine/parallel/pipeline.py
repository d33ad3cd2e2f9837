"""Pipeline parallelism with two ranks: the second runs the encoder layers, the first the rest.

The first rank runs the engine, with the decoder layers, the head, the draft stages and the sampler.
It tells the second rank what to compute and receives the residual streams.  Each rank keeps the
state of its own layers.  On GPUs the second rank starts a pass while the first is still busy with
the previous one, if the engine launches passes ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import Tensor

from deepinfer.engine.cache.kv_cache import KVCache, RingSnapshot
from deepinfer.engine.execution.batch import DraftOutput, ForwardBatch, ForwardOutput
from deepinfer.engine.model.encoder_output import EncoderOutput
from deepinfer.engine.model.model import Model
from deepinfer.engine.model.residual import Settled

from .groups import Group
from .on_device import on_device

if TYPE_CHECKING:
    from deepinfer.engine.model.config import ModelConfig

_FIRST, _SECOND = 0, 1  # ranks in the groups
_Order = tuple[Literal["forward", "snapshot", "restore", "end"], Any]


@dataclass(frozen=True, slots=True)
class Stages:
    """Both ranks, the one with the engine first.  ``control`` carries orders, ``data`` carries
    tensors between devices."""

    control: Group
    data: Group

    def order(self, *order: Any) -> None:
        self.control.broadcast(order)

    def next_order(self) -> _Order:
        name, value = cast(_Order, self.control.broadcast(None))
        return name, value


class PipelineModel:
    """The model of the first rank, with the decoder layers and the draft stages; its cache is a
    ``PipelineCache``."""

    def __init__(self, model: Model, stages: Stages) -> None:
        self.model = model
        self.stages = stages

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    def forward(self, batch: ForwardBatch, cache: PipelineCache) -> ForwardOutput:
        self.stages.order("forward", on_device(batch, "cpu"))
        encoded = self.model.encode(batch, cache.own)
        received = [self.stages.data.receive(like, _SECOND) for like in _handed_over(encoded, self)]
        streams, pre, *taps = received
        encoded = replace(
            encoded,
            residual=Settled(streams, pre),
            taps=dict(zip(_encoder_taps(self.config), taps, strict=True)),
        )
        return self.model.decode(encoded, cache.own)

    def seed_draft(self, *arguments: Any) -> None:
        *others, cache = arguments
        call: Callable[..., None] = self.model.seed_draft
        call(*others, cache.own)

    def draft(self, *arguments: Any) -> DraftOutput:
        *others, cache, sample, depth, keeps_logits = arguments
        call: Callable[..., DraftOutput] = self.model.draft
        return call(*others, cache.own, sample, depth, keeps_logits)

    def end(self) -> None:
        """End the other rank."""
        self.stages.order("end", None)


class PipelineCache:
    """The cache of the first rank; snapshots cover the rings of both."""

    def __init__(self, own: KVCache, stages: Stages) -> None:
        self.own = own
        self.stages = stages

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)

    def snapshot(self, slot: int) -> RingSnapshot:
        self.stages.order("snapshot", slot)
        own = self.own.snapshot(slot).rings
        return RingSnapshot(own + tuple(self.stages.data.receive(ring, _SECOND) for ring in own))

    def restore(self, slot: int, snapshot: Any) -> None:
        self.stages.order("restore", slot)
        half = len(snapshot.rings) // 2
        self.own.restore(slot, RingSnapshot(snapshot.rings[:half]))
        for ring in snapshot.rings[half:]:
            self.stages.data.send(ring, _SECOND)


@torch.inference_mode()
def run_encoder(model: Model, cache: KVCache, stages: Stages) -> None:
    """Run the second rank until the first one ends it."""
    while True:
        name, value = stages.next_order()
        if name == "end":
            return
        if name == "forward":
            encoded = model.encode(on_device(value, str(model.device)), cache)
            settled = encoded.residual.settle()
            taps = [encoded.taps[tap] for tap in _encoder_taps(model.config)]
            for tensor in (settled.streams, settled.pre, *taps):
                stages.data.send(tensor, _FIRST)
        elif name == "snapshot":
            for ring in cache.snapshot(value).rings:
                stages.data.send(ring, _FIRST)
        else:
            rings = [stages.data.receive(r, _FIRST) for r in cache.snapshot(value).rings]
            cache.restore(value, RingSnapshot(tuple(rings)))


def _handed_over(encoded: EncoderOutput, model: PipelineModel) -> Sequence[Tensor]:
    """Tensors with the shapes that the other rank will send for a pass."""
    settled = encoded.residual.settle()
    tap = settled.streams[:, 0]
    return settled.streams, settled.pre, *(tap for _ in _encoder_taps(model.config))


def _encoder_taps(config: ModelConfig) -> list[int]:
    """Positions in ``dspark_target_layer_ids`` of encoder layers."""
    return [plan.tap for plan in config.layers if plan.tap is not None and not plan.is_decoder]
