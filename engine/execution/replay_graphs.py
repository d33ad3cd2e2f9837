"""Bounded replay as CUDA graphs: the decoder layers on the last window of each prompt.

A window has few tokens but takes as many launches as any other pass, so launching takes several
times as long as computing.  The results of the encoder layers are copied to a graph's inputs.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch

from .batch import ForwardBatch, ForwardOutput
from .graphs import GraphCache
from .slot_table import SlotTable

if TYPE_CHECKING:
    from deepinfer.engine.model.config import ModelConfig
    from deepinfer.engine.model.decoder_input import DecoderInput
    from deepinfer.engine.model.encoder_output import EncoderOutput

_MOST_TOKENS = 1024  # with more, computing takes as long as launching


@runtime_checkable
class HasHalves(Protocol):
    """A model whose forward pass can be split before the decoder layers."""

    @property
    def config(self) -> ModelConfig: ...

    def encode(self, batch: ForwardBatch, cache: Any) -> EncoderOutput: ...

    def enter_decoder(self, encoded: EncoderOutput, cache: Any) -> DecoderInput: ...

    def finish(self, start: DecoderInput, cache: Any) -> ForwardOutput: ...


class ReplayGraphs:
    """One graph per number of prompts and bound on their lengths, which ``table`` gives.

    Only one runs at a time: graphs with the same number of prompts share their input buffers.
    """

    def __init__(self, graphs: GraphCache, table: SlotTable) -> None:
        self._graphs = graphs
        self._table = table
        self._places: dict[Hashable, DecoderInput] = {}
        self._kept: dict[Hashable, DecoderInput] = {}

    @property
    def is_enabled(self) -> bool:
        return self._graphs.is_enabled

    def forward(self, model: HasHalves, batch: ForwardBatch, cache: Any) -> ForwardOutput:
        """As ``Model.forward``, but ``main_hidden`` is valid only until the next graph runs."""
        start = model.enter_decoder(model.encode(batch, cache), cache)
        window, lens = model.config.sliding_window, start.batch.decoder_lens
        if set(lens) != {window} or len(start.main_rows) > _MOST_TOKENS:
            return model.finish(start, cache)
        context = self._table.context_bound(max(start.batch.context_lens))
        num_logits = len(start.batch.logit_rows)
        size = len(lens), num_logits, batch.may_have_images
        key = *size, context
        if size not in self._places:
            self._places[size] = start.map(torch.empty_like)
        if key not in self._kept:
            self._kept[key] = self._reaching(self._places[size], context)
        kept = self._kept[key]
        for place, value in zip(kept.tensors, start.tensors, strict=True):
            place[tuple(map(slice, value.shape))].copy_(value)
        output = self._graphs.run(("replay", *key), lambda: model.finish(kept, cache))
        return replace(output, logits=output.logits.clone(), main_rows=start.main_rows)

    def _reaching(self, place: DecoderInput, context: int) -> DecoderInput:
        """The same buffers with a block table of its own, as long as ``context`` needs."""
        count = len(place.batch.decoder_lens)
        num_blocks = -(-context // self._table.block_size)
        batch = replace(
            place.batch,
            block_table=place.batch.block_table.new_zeros(count, num_blocks),
            context_lens=(context,) * count,
        )
        return replace(place, batch=batch)
