"""``PrefillWorker``: prompt chunks through the model; the last chunk of a prompt yields a token."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .decode_step import DecodeStep
from .sampler import apply_rules, new_logprobs
from .schedule import PrefillBatch
from .staging import send
from .types import TokenLogprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillResult:
    """Per chunk: the first token in a list (empty if more chunks follow), its log-probabilities if
    asked for, and the saved rings if asked for."""

    tokens: list[list[int]]
    logprobs: list[list[TokenLogprobs]]
    snapshots: list[object]


class PrefillWorker:
    """The prefill role: computes what a prompt leaves in the caches."""

    def __init__(self, step: DecodeStep) -> None:
        self.model = step.model
        self.table = step.table
        self.sampler = step.sampler
        self.newest = step.newest

    def run(self, batch: PrefillBatch) -> PrefillResult:
        chunks = batch.chunks
        self._begin(batch)
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
        raw = self.model.forward(forward_batch).logits
        self.model.note(forward_batch.state_slots)
        tokens: list[list[int]] = [[] for _ in chunks]
        logprobs: list[list[TokenLogprobs]] = [[] for _ in chunks]
        if last:
            ending = [states[i] for i in last]
            ones = [1] * len(last)
            logits = apply_rules(raw, ending, ones)
            positions, slots = send(
                [[len(s.token_ids) for s in ending], [s.slot for s in ending]], self.table.device
            )
            drawn = self.sampler.draw(logits, slots, positions)
            self.newest[slots] = drawn
            first_tokens = [[token] for token in drawn.tolist()]
            found = new_logprobs(ending, raw, drawn, ones, first_tokens)
            for i, token, values in zip(last, first_tokens, found, strict=True):
                tokens[i], logprobs[i] = token, values
        cache = self.model.cache
        saved = [cache.snapshot(c.state.slot) if c.is_saved else None for c in chunks]
        return PrefillResult(tokens=tokens, logprobs=logprobs, snapshots=saved)

    def _begin(self, batch: PrefillBatch) -> None:
        """Take over the slots of requests that start, with restored rings if there are any."""
        starting = [chunk.state for chunk in batch.chunks if chunk.is_first]
        for state in starting:
            self.table.assign(state)
        if starting:
            self.sampler.assign(starting)
        for chunk in batch.chunks:
            if chunk.restore is not None:
                self.model.cache.restore(chunk.state.slot, chunk.restore)
