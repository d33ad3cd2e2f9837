"""``PrefillWorker``: runs prompt chunks; the last chunk of a prompt yields its first token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from deepinfer.engine.sampling.sampler import new_logprobs
from deepinfer.engine.sampling.step_masks import StepMasks
from deepinfer.engine.scheduling.request_state import RequestState
from deepinfer.engine.scheduling.schedule import PrefillBatch, PrefillChunk
from deepinfer.engine.types import TokenLogprobs

from .batch import RingSave
from .decode_step import DecodeStep
from .replay_graphs import ReplayGraphs
from .staging import send


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillResult:
    """Per chunk: a list with the first token (empty if more chunks follow), its log-probabilities
    and the ring snapshots of its ``saves``."""

    tokens: list[list[int]]
    logprobs: list[list[TokenLogprobs]]
    snapshots: list[list[object]]


class PrefillWorker:
    """The prefill role: computes prompts and fills the caches."""

    def __init__(self, step: DecodeStep) -> None:
        self.model = step.model
        self.table = step.table
        self.sampler = step.sampler
        self.newest = step.newest
        self._graphs = ReplayGraphs(step.graphs, step.table)

    def run(self, batch: PrefillBatch) -> PrefillResult:
        chunks = batch.chunks
        raw, last, snapshots = self.compute(batch)
        tokens: list[list[int]] = [[] for _ in chunks]
        logprobs: list[list[TokenLogprobs]] = [[] for _ in chunks]
        if last:
            first_tokens, found = self.first_tokens(raw, [chunks[i].state for i in last])
            for i, new, values in zip(last, first_tokens, found, strict=True):
                tokens[i], logprobs[i] = new, values
        return PrefillResult(tokens=tokens, logprobs=logprobs, snapshots=snapshots)

    def compute(self, batch: PrefillBatch) -> tuple[Tensor, list[int], list[list[object]]]:
        """Logits [N, V] f32 after the N chunks that end a prompt, the indices of these chunks, and
        the ring snapshots of each chunk."""
        chunks = batch.chunks
        self.begin([chunk.state for chunk in chunks if chunk.is_first])
        for chunk in chunks:
            if chunk.restore is not None:
                self.model.cache.restore(chunk.state.slot, chunk.restore)
        states = [chunk.state for chunk in chunks]
        lens = [chunk.end - chunk.start for chunk in chunks]
        last = [i for i, chunk in enumerate(chunks) if chunk.is_last]
        forward_batch = self.table.batch(
            states,
            [chunk.start for chunk in chunks],
            [t for c in chunks for t in c.state.token_ids[c.start : c.end]],
            lens,
            np.cumsum(lens)[last] - 1,
            self._ring_saves(chunks),
        )
        raw = self.model.prefill(forward_batch, self._graphs).logits
        self.model.note(forward_batch.state_slots)
        snapshot = self.model.cache.snapshot
        return raw, last, [[snapshot(save.slot) for save in chunk.saves] for chunk in chunks]

    def begin(self, states: Sequence[RequestState]) -> None:
        """Set up the slots of requests that start."""
        for state in states:
            self.table.assign(state)
        if states:
            self.sampler.assign(states)

    def _ring_saves(self, chunks: Sequence[PrefillChunk]) -> list[RingSave]:
        """The rings that the pass must leave in spare slots; those of earlier chunks are copied
        there, since the pass stores only its own tokens."""
        found = []
        begin = 0
        for chunk in chunks:
            for save in chunk.saves:
                if save.slot == chunk.state.slot:
                    continue
                if chunk.start:
                    cache = self.model.cache
                    cache.restore(save.slot, cache.snapshot(chunk.state.slot))
                found.append(RingSave(begin, begin + save.position - chunk.start, save.slot))
            begin += chunk.end - chunk.start
        return found

    def first_tokens(
        self, raw: Tensor, states: Sequence[RequestState]
    ) -> tuple[list[list[int]], list[list[TokenLogprobs]]]:
        """Sample from logits [R, V] f32 after R whole prompts: the token of each in a list, and its
        log-probabilities if requested."""
        ones = [1] * len(states)
        constraints = [state.constraint for state in states]
        with StepMasks(constraints, ones, None, raw.shape[1], raw.device) as masks:
            logits = self.sampler.adjust(raw, states, ones, None, masks)
        positions, slots = send(
            [[len(s.token_ids) for s in states], [s.slot for s in states]], self.table.device
        )
        drawn = self.sampler.draw(logits, slots, positions)
        self.newest[slots] = drawn
        tokens = [[token] for token in drawn.tolist()]
        return tokens, new_logprobs(states, raw, drawn, ones, tokens)
