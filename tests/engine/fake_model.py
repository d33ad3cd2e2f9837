"""A model and cache that only remember tokens, so that every mistake of the engine shows.

The fake cache stores token ids where a real one stores states: in blocks (global KV), and in
rings by slot and position (encoder and decoder windows, draft stages).  The fake model's next-token
logits are a hash of what it reads there.  A block shared by accident, a ring not rebuilt, a wrong
position or a lost token gives other tokens than ``oracle``, which computes the same from the plain
list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from deepinfer.engine.config import EngineConfig
from deepinfer.engine.engine import LLMEngine
from deepinfer.engine.execution.batch import DraftOutput, ForwardBatch, ForwardOutput
from deepinfer.engine.types import Completion, Request, SamplingParams

EMPTY = -1


@dataclass(frozen=True)
class FakeConfig:
    vocab_size: int = 50
    eos_token_id: int = 1
    sliding_window: int = 4
    max_position_embeddings: int = 256
    num_nextn_predict_layers: int = 1
    dspark_block_size: int = 5
    image_token_id: int | None = None


class FakeCache:
    def __init__(
        self, config: FakeConfig, num_blocks: int, block_size: int, num_slots: int
    ) -> None:
        self.block_size = block_size
        self.num_slots = num_slots
        self.blocks = torch.full((num_blocks, block_size), EMPTY)
        self.ring_size = config.sliding_window + 6
        self.rings = torch.full((3, num_slots, self.ring_size), EMPTY)

    def snapshot(self, slot: int) -> Tensor:
        return self.rings[:, slot].clone()

    def restore(self, slot: int, snapshot: Tensor) -> None:
        self.rings[:, slot] = snapshot


def next_logits(
    config: FakeConfig,
    history: Sequence[int],
    encoder_start: int = 0,
    decoder_start: int = 0,
    encoder: Sequence[int] | None = None,
    decoder: Sequence[int] | None = None,
) -> Tensor:
    """Logits after ``history``: a hash of all of it and of the two windows at its end."""
    position = len(history) - 1
    first = max(position - config.sliding_window + 1, 0)
    if encoder is None:
        encoder = history[max(first, encoder_start) :]
    if decoder is None:
        decoder = history[max(first, decoder_start) :]
    key = hash((tuple(history), tuple(encoder), tuple(decoder)))
    generator = torch.Generator().manual_seed(key & (2**62 - 1))
    return torch.randn(config.vocab_size, generator=generator) * 3


class FakeModel:
    """Reads tokens back from the cache exactly where a real model would read states."""

    def __init__(self, config: FakeConfig | None = None) -> None:
        self.config = config or FakeConfig()
        self.batches: list[ForwardBatch] = []
        self._history: dict[int, list[int]] = {}

    def forward(self, batch: ForwardBatch, cache: FakeCache) -> ForwardOutput:
        self.batches.append(batch)
        wanted = set(batch.logit_rows.tolist())
        logits = []
        row = 0
        for r, (length, context) in enumerate(
            zip(batch.query_lens, batch.context_lens, strict=True)
        ):
            for position in range(context - length, context):
                assert int(batch.positions[row]) == position
                assert int(batch.request_rows[row]) == r
                self._write(batch, cache, r, position, int(batch.token_ids[row]))
                for save in batch.ring_saves:
                    if save.begin <= row < save.end:
                        cache.rings[0, save.slot, position % cache.ring_size] = batch.token_ids[row]
                self._check_windows(batch, cache, r, position)
                if row in wanted:
                    logits.append(self._read(batch, cache, r, position))
                row += 1
        assert row == len(batch.token_ids)
        in_decoder = batch.positions >= batch.decoder_start[batch.request_rows]
        main_rows = in_decoder.nonzero()[:, 0]
        return ForwardOutput(
            logits=torch.stack(logits) if logits else torch.empty(0, self.config.vocab_size),
            main_hidden=batch.token_ids[main_rows, None],
            main_rows=main_rows,
        )

    def seed_draft(
        self,
        main_hidden: Tensor,
        positions: Tensor,
        state_slots: Tensor,
        query_lens: Sequence[int],
        cache: FakeCache,
    ) -> None:
        assert len(positions) == len(state_slots) == len(main_hidden) == sum(query_lens)
        for token, position, slot in zip(main_hidden[:, 0], positions, state_slots, strict=True):
            cache.rings[2, slot, position % cache.ring_size] = token

    def draft(
        self,
        anchors: Tensor,
        positions: Tensor,
        slots: Tensor,
        starts: Tensor,
        cache: FakeCache,
        sample: Callable[[Tensor, Tensor], Tensor],
        depth: int,
        keeps_logits: bool,
    ) -> DraftOutput:
        """Drafts from the right logits, or now and then from others."""
        histories = []
        for anchor, position, slot, start in zip(anchors, positions, slots, starts, strict=True):
            verified = self._history[int(slot)][: int(position)]
            assert len(verified) == position
            seen = range(max(int(start), int(position) - self.config.sliding_window), position)
            ring = cache.rings[2, slot]
            assert all(ring[key % cache.ring_size] == verified[key] for key in seen), "not seeded"
            histories.append([*verified, int(anchor)])
        ids, logits = [], []
        for step in range(depth):
            rows = [
                next_logits(self.config, h, 0, int(start)).roll(hash(tuple(h)) % 4 // 3)
                for h, start in zip(histories, starts, strict=True)
            ]
            logits.append(torch.stack(rows))
            ids.append(sample(logits[-1], positions + 1 + step))
            for history, token in zip(histories, ids[-1].tolist(), strict=True):
                history.append(token)
        return DraftOutput(
            token_ids=torch.stack(ids, 1),
            logits=torch.stack(logits, 1) if keeps_logits else None,
            confidence=torch.ones(len(anchors), len(ids)),
        )

    def _write(
        self, batch: ForwardBatch, cache: FakeCache, r: int, position: int, token: int
    ) -> None:
        slot = int(batch.state_slots[r])
        cache.rings[0, slot, position % cache.ring_size] = token
        if position >= int(batch.decoder_start[r]):
            cache.rings[1, slot, position % cache.ring_size] = token
        block, offset = divmod(position, cache.block_size)
        stored = cache.blocks[int(batch.block_table[r, block])]
        if position >= int(batch.write_start[r]):
            stored[offset] = token
        assert int(stored[offset]) == token, "the cache holds another prefix"

    def _read(self, batch: ForwardBatch, cache: FakeCache, r: int, position: int) -> Tensor:
        history = [
            int(
                cache.blocks[int(batch.block_table[r, p // cache.block_size]), p % cache.block_size]
            )
            for p in range(position + 1)
        ]
        self._history[int(batch.state_slots[r])] = history
        encoder, decoder = self._windows(batch, cache, r, position)
        assert decoder is not None
        return next_logits(self.config, history, encoder=encoder, decoder=decoder)

    def _windows(
        self, batch: ForwardBatch, cache: FakeCache, r: int, position: int
    ) -> tuple[list[int], list[int] | None]:
        """What the two rings hold for a token; no decoder window before ``decoder_start``."""
        windows: list[list[int]] = []
        for ring, start in enumerate((batch.encoder_start[r], batch.decoder_start[r])):
            first = max(position - self.config.sliding_window + 1, int(start))
            slots = torch.arange(first, max(first, position + 1)) % cache.ring_size
            windows.append(cache.rings[ring, int(batch.state_slots[r])][slots].tolist())
        return windows[0], windows[1] or None

    def _check_windows(self, batch: ForwardBatch, cache: FakeCache, r: int, position: int) -> None:
        """Every token that is run finds its own past in the rings, not somebody else's."""
        block_size = cache.block_size
        width = self.config.sliding_window
        for window in self._windows(batch, cache, r, position):
            keys = range(position, position - width, -1)
            for key, token in zip(keys, (window or [])[::-1], strict=False):
                block = cache.blocks[int(batch.block_table[r, key // block_size])]
                assert token == int(block[key % block_size]), "a ring was not rebuilt"


def make_engine(
    model: FakeModel | None = None, *, overlaps_steps: bool = False, **settings: object
) -> LLMEngine:
    """An engine on the fake model; small unless told otherwise."""
    values: dict[str, object] = {
        "max_num_seqs": 4,
        "max_num_batched_tokens": 16,
        "block_size": 4,
        "num_blocks": 32,
        "max_model_len": 64,
    }
    config = EngineConfig(**(values | settings))  # type: ignore[arg-type]
    assert config.num_blocks is not None
    model = model or FakeModel()
    num_slots = config.max_num_seqs + config.num_spare_slots
    cache = FakeCache(model.config, config.num_blocks, config.block_size, num_slots)
    return LLMEngine(model, config, cache, overlaps_steps=overlaps_steps)  # type: ignore[arg-type]


def run(
    engine: LLMEngine, requests: Sequence[Request], max_steps: int = 5000
) -> dict[str, Completion]:
    """All completions by id; integrity is checked after every step."""
    for request in requests:
        engine.add_request(request)
    done: dict[str, Completion] = {}
    for _ in range(max_steps):
        if not engine.has_unfinished():
            break
        for completion in engine.step():
            assert completion.request_id not in done
            done[completion.request_id] = completion
        engine.check_integrity()
    assert not engine.has_unfinished(), "the engine does not come to an end"
    assert not engine.scheduler.holding
    return done


def oracle(
    config: FakeConfig,
    prompt: Sequence[int],
    max_tokens: int,
    *,
    exact: bool = False,
    encoder_start: int = 0,
) -> tuple[int, ...]:
    """The greedy answer, computed from the list of tokens alone."""
    tokens = list(prompt)
    start = 0 if exact else max(0, len(prompt) - config.sliding_window)
    while len(tokens) < len(prompt) + max_tokens:
        logits = next_logits(config, tokens, encoder_start, start)
        tokens.append(int(logits.argmax()))
        if tokens[-1] == config.eos_token_id:
            break
    return tuple(tokens[len(prompt) :])


def request(
    request_id: str, prompt: Sequence[int], *, seed: int = 0, **sampling: object
) -> Request:
    values: dict[str, object] = {"temperature": 0.0, "max_tokens": 8}
    return Request(
        request_id=request_id,
        prompt_token_ids=tuple(prompt),
        sampling=SamplingParams(**(values | sampling)),  # type: ignore[arg-type]
        seed=seed,
    )
