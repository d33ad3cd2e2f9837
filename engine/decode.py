"""``DecodeWorker``: the next tokens of every decoding request, with or without drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .bound_model import BoundModel
from .constraint import follow_constraints
from .dspark import VerifyLengths, accepted_tokens, verify_all
from .request_state import RequestState
from .sampler import Sampler, apply_rules, new_logprobs
from .schedule import DecodeBatch
from .slot_table import SlotTable
from .types import TokenLogprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeResult:
    """Per request: the new tokens in order, their log-probabilities where asked for, and how many
    drafts were verified."""

    tokens: list[list[int]]
    logprobs: list[list[TokenLogprobs]]
    num_drafts: list[int]


class DecodeWorker:
    """The decode role: continues from the caches that a prefill left."""

    def __init__(
        self,
        model: BoundModel,
        table: SlotTable,
        sampler: Sampler,
        verify_lengths: VerifyLengths = verify_all,
    ) -> None:
        self.model = model
        self.table = table
        self.sampler = sampler
        self.verify_lengths = verify_lengths

    def run(self, batch: DecodeBatch) -> DecodeResult:
        states = batch.states
        token_ids = [state.token_ids[-1] for state in states]
        counts = [1] * len(states)
        drafts = None
        if any(batch.num_drafts):
            drafts = self._draft(states, batch.num_drafts)
            counts = [1 + len(ids) for ids in drafts]
            pairs = zip(token_ids, drafts, strict=True)
            token_ids = [token for anchor, ids in pairs for token in (anchor, *ids)]
        forward_batch = self.table.batch(
            states,
            [state.num_computed_tokens for state in states],
            token_ids,
            counts,
            np.arange(len(token_ids)),
        )
        raw = self.model.forward(forward_batch)
        logits = apply_rules(raw, states, counts, drafts)
        slots = forward_batch.state_slots[forward_batch.request_rows]
        drawn = self.sampler.draw(logits, slots, forward_batch.positions + 1)
        tokens = _split(drawn.tolist(), counts)
        if drafts is not None:
            tokens = [accepted_tokens(*pair) for pair in zip(drafts, tokens, strict=True)]
        return DecodeResult(
            tokens=tokens,
            logprobs=new_logprobs(states, raw, drawn, counts, tokens),
            num_drafts=[count - 1 for count in counts],
        )

    def _draft(self, states: Sequence[RequestState], most: Sequence[int]) -> list[list[int]]:
        """Drafts worth verifying, drawn with the noise that the target will use there."""
        output = self.model.draft(states, self.sampler.draw)
        lengths = self.verify_lengths(output.confidence, most)
        pairs = zip(output.token_ids.tolist(), lengths, strict=True)
        drafts = [ids[:length] for ids, length in pairs]
        return follow_constraints(drafts, [state.constraint for state in states], most)


def _split(values: list[int], counts: Sequence[int]) -> list[list[int]]:
    ends = np.cumsum(counts).tolist()
    return [values[end - count : end] for end, count in zip(ends, counts, strict=True)]
