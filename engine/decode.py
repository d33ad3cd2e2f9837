"""``DecodeWorker``: one more token for every decoding request."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .runner import Cache, Runner
from .sampler import Sampler, apply_rules, logprobs_of
from .schedule import DecodeBatch
from .slot_table import SlotTable
from .types import TokenLogprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeResult:
    """Per request: the new tokens in order, and their log-probabilities where asked for."""

    tokens: list[list[int]]
    logprobs: list[list[TokenLogprobs]]


class DecodeWorker:
    """The decode role: continues from the caches that a prefill left."""

    def __init__(self, model: Runner, cache: Cache, table: SlotTable, sampler: Sampler) -> None:
        self.model = model
        self.cache = cache
        self.table = table
        self.sampler = sampler

    def run(self, batch: DecodeBatch) -> DecodeResult:
        states = batch.states
        forward_batch = self.table.batch(
            states,
            [state.num_computed_tokens for state in states],
            [state.token_ids[-1] for state in states],
            [1] * len(states),
            np.arange(len(states)),
        )
        output = self.model.forward(forward_batch, self.cache)
        logits = apply_rules(output.logits, states, [1] * len(states))
        positions = forward_batch.positions + 1
        drawn = self.sampler.draw(logits, forward_batch.state_slots, positions)
        logprobs: list[list[TokenLogprobs]] = [[] for _ in states]
        for row, state in enumerate(states):
            sampling = state.request.sampling
            if sampling.logprobs and drawn[row] >= 0:
                one = slice(row, row + 1)
                logprobs[row] = logprobs_of(output.logits[one], drawn[one], sampling.top_logprobs)
        return DecodeResult(tokens=[[t] for t in drawn.tolist()], logprobs=logprobs)
