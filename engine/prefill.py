"""``PrefillWorker``: prompt chunks through the model; the last chunk of a prompt yields a token."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from .runner import Cache, Runner
from .sampler import Sampler, apply_rules, logprobs_of
from .schedule import PrefillBatch
from .slot_table import SlotTable
from .types import TokenLogprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillResult:
    """Per chunk: the first token (None if more chunks follow), its log-probabilities if asked for,
    and the saved rings if asked for."""

    tokens: list[int | None]
    logprobs: list[TokenLogprobs | None]
    snapshots: list[object]


class PrefillWorker:
    """The prefill role: computes what a prompt leaves in the caches."""

    def __init__(self, model: Runner, cache: Cache, table: SlotTable, sampler: Sampler) -> None:
        self.model = model
        self.cache = cache
        self.table = table
        self.sampler = sampler

    def run(self, batch: PrefillBatch) -> PrefillResult:
        chunks = batch.chunks
        for chunk in chunks:
            if chunk.is_first:
                self.table.assign(chunk.state)
                self.sampler.assign(chunk.state)
            if chunk.restore is not None:
                self.cache.restore(chunk.state.slot, chunk.restore)
        states = [chunk.state for chunk in chunks]
        lens = [chunk.end - chunk.start for chunk in chunks]
        last = [i for i, chunk in enumerate(chunks) if chunk.is_last]
        forward_batch = self.table.batch(
            states,
            [chunk.start for chunk in chunks],
            [t for c in chunks for t in c.state.token_ids[c.start : c.end]],
            lens,
            np.cumsum(lens)[last] - 1,
        )
        output = self.model.forward(forward_batch, self.cache)
        tokens: list[int | None] = [None] * len(chunks)
        logprobs: list[TokenLogprobs | None] = [None] * len(chunks)
        if last:
            finishing = [states[i] for i in last]
            logits = apply_rules(output.logits, finishing, [1] * len(last))
            positions = torch.tensor([len(s.token_ids) for s in finishing], device=logits.device)
            slots = torch.tensor([s.slot for s in finishing], device=logits.device)
            drawn = self.sampler.draw(logits, slots, positions)
            for row, (i, token) in enumerate(zip(last, drawn.tolist(), strict=True)):
                tokens[i] = token
                sampling = states[i].request.sampling
                if sampling.logprobs and token >= 0:
                    one = slice(row, row + 1)
                    logprobs[i] = logprobs_of(
                        output.logits[one], drawn[one], sampling.top_logprobs
                    )[0]
        saved = [self.cache.snapshot(c.state.slot) if c.is_saved else None for c in chunks]
        return PrefillResult(tokens=tokens, logprobs=logprobs, snapshots=saved)
