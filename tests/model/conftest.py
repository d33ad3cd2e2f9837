"""Golden checkpoints as models, and a fleet of requests that share passes in any way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from deepinfer.engine.cache.kv_cache import KVCache
from deepinfer.engine.checkpoint.weights import open_checkpoint
from deepinfer.engine.execution.batch import ForwardBatch, RingSave
from deepinfer.engine.model.model import Model
from deepinfer.recipes.token_compression import token_compression
from deepinfer.recipes.tokenizer import Tokenizer

GOLDENS = Path(__file__).parents[1] / "goldens"
BLOCK_SIZE = 4
BLOCKS_EACH = 64


@dataclass
class Seen:
    """What came out of one request so far, by position."""

    token_ids: Tensor
    decoder_start: int = 0
    encoder_start: int = 0
    write_start: int = 0
    num_done: int = 0
    logits: dict[int, Tensor] = field(default_factory=dict)
    hidden: dict[int, Tensor] = field(default_factory=dict)


class Fleet:
    """Requests with their own slot and scattered blocks of one cache."""

    def __init__(self, model: Model, prompts: list[Tensor], starts: list[int], seed: int) -> None:
        self.model = model
        self.requests = [Seen(p, s) for p, s in zip(prompts, starts, strict=True)]
        count = len(prompts)
        generator = torch.Generator().manual_seed(seed)
        self.cache = KVCache.allocate(
            model.config, num_blocks=count * BLOCKS_EACH, block_size=BLOCK_SIZE, num_slots=count
        )
        self.tables = torch.randperm(count * BLOCKS_EACH, generator=generator).view(count, -1)
        self.slots = torch.randperm(count, generator=generator)

    def run(
        self,
        parts: list[tuple[int, int]],
        wanted: list[int] | None = None,
        ring_saves: Sequence[RingSave] = (),
    ) -> None:
        """One pass over the next ``count`` tokens of each (request, count); logits of the
        ``wanted`` tokens of the pass, by default of all that the decoder layers compute."""
        rows, ids, positions, reached = [], [], [], []
        for row, (number, count) in enumerate(parts):
            seen = self.requests[number]
            span = range(seen.num_done, seen.num_done + count)
            reached += [len(ids) + i for i, p in enumerate(span) if p >= seen.decoder_start]
            ids += seen.token_ids[span.start : span.stop].tolist()
            positions += list(span)
            rows += [row] * count
        wanted = reached if wanted is None else wanted
        numbers = torch.tensor([number for number, _ in parts])
        members = [self.requests[number] for number, _ in parts]
        ends = tuple(self.requests[n].num_done + count for n, count in parts)
        output = self.model.forward(
            ForwardBatch.of(
                token_ids=ids,
                query_lens=[count for _, count in parts],
                first=[seen.num_done for seen in members],
                block_table=self.tables[numbers],
                state_slots=self.slots[numbers],
                encoder_start=[seen.encoder_start for seen in members],
                decoder_start=[seen.decoder_start for seen in members],
                write_start=[seen.write_start for seen in members],
                logit_rows=wanted,
                ring_saves=ring_saves,
                image_token_id=self.model.config.image_token_id,
            ),
            self.cache,
        )
        assert output.main_rows.tolist() == wanted
        for token, logits, hidden in zip(wanted, output.logits, output.main_hidden, strict=True):
            seen = self.requests[parts[rows[token]][0]]
            seen.logits[positions[token]] = logits
            seen.hidden[positions[token]] = hidden
        for (number, _), end in zip(parts, ends, strict=True):
            self.requests[number].num_done = end

    def global_rows(self, number: int) -> list[Tensor]:
        """The packed entries that a request's finished tokens have left, in order."""
        config, done = self.model.config, self.requests[number].num_done
        return [
            pool[layer][self.tables[number]].flatten(0, 1)[: done // config.compress_ratios[layer]]
            for pool in (self.cache.main, self.cache.index)
            for layer in config.kv_source_layer_ids
        ]

    def rings(self, number: int) -> list[Tensor]:
        return list(self.cache.snapshot(int(self.slots[number])).rings)


@cache
def load_model(name: str) -> Model:
    folder = GOLDENS / name / "checkpoint"
    checkpoint = open_checkpoint(folder)
    tokenizer = Tokenizer.from_file(folder / "tokenizer.json")
    return Model(checkpoint.config, checkpoint.load(), token_map=token_compression(tokenizer))


@pytest.fixture(params=["tiny-a", pytest.param("kdim-a", marks=pytest.mark.slow)])
def model(request: pytest.FixtureRequest) -> Model:
    return load_model(request.param)


@pytest.fixture
def new_fleet() -> type[Fleet]:
    return Fleet
