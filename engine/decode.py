"""``DecodeWorker``: the next tokens of every decoding request, with or without drafts."""

from __future__ import annotations

import time
from collections.abc import Sequence, Set
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .bound_model import BoundModel
from .calibration import Calibration
from .constraint import follow_constraints
from .draft_planner import DraftPlanner, VerifyAll
from .dspark import accepted_tokens
from .rejection import rejection_tokens, sampling_probs
from .request_state import RequestState
from .sampler import Sampler, apply_rules, new_logprobs
from .schedule import DecodeBatch
from .slot_table import SlotTable
from .types import TokenLogprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftBlock:
    """By request: the drafts to verify, and how likely each was thought to survive.

    logits [R, B, V] f32 is what drafts were drawn from; num_proposed counts all that were drafted.
    """

    token_ids: list[list[int]]
    survival: list[list[float]]
    logits: Tensor
    num_proposed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeResult:
    """Per request: the new tokens in order, their log-probabilities where asked for, how many
    drafts were verified, and how likely each of those was thought to survive.

    ``num_proposed`` counts the drafts of the step, verified or not; 0 for a step without drafting.
    """

    tokens: list[list[int]]
    logprobs: list[list[TokenLogprobs]]
    num_drafts: list[int]
    survival: list[list[float]]
    num_proposed: int = 0


class DecodeWorker:
    """The decode role: continues from the caches that a prefill left."""

    def __init__(
        self,
        model: BoundModel,
        table: SlotTable,
        sampler: Sampler,
        *,
        planner: DraftPlanner | None = None,
        calibration: Calibration | None = None,
        rejects: bool = False,
    ) -> None:
        self.model = model
        self.table = table
        self.sampler = sampler
        self.planner = planner or VerifyAll()
        self.calibration = calibration or Calibration()
        self.rejects = rejects

    def run(self, batch: DecodeBatch) -> DecodeResult:
        started = time.perf_counter()
        states = batch.states
        token_ids = [state.token_ids[-1] for state in states]
        counts = [1] * len(states)
        block = None
        if any(batch.num_drafts) and self.planner.is_worth_drafting(batch.num_drafts):
            block = self._draft(states, batch.num_drafts)
            counts = [1 + len(ids) for ids in block.token_ids]
            pairs = zip(token_ids, block.token_ids, strict=True)
            token_ids = [token for anchor, ids in pairs for token in (anchor, *ids)]
        drafts = block.token_ids if block else None
        forward_batch = self.table.batch(
            states,
            [state.num_computed_tokens for state in states],
            token_ids,
            counts,
            np.arange(len(token_ids)),
        )
        raw = self.model.forward(forward_batch, is_plain=block is None)
        logits = apply_rules(raw, states, counts, drafts)
        slots = forward_batch.state_slots[forward_batch.request_rows]
        positions = forward_batch.positions + 1
        drawn = self.sampler.draw(logits, slots, positions)
        tokens = _split(drawn.tolist(), counts)
        if drafts is not None:
            tokens = [accepted_tokens(*pair) for pair in zip(drafts, tokens, strict=True)]
        if block is not None and self.rejects:
            drawn = self._reject(states, block, logits, slots, positions, drawn, tokens)
        num_drafts = [count - 1 for count in counts]
        seconds = time.perf_counter() - started
        self.planner.took(seconds, len(states), sum(num_drafts) if block else None)
        return DecodeResult(
            tokens=tokens,
            logprobs=new_logprobs(states, raw, drawn, counts, tokens),
            num_drafts=num_drafts,
            survival=block.survival if block else [[] for _ in states],
            num_proposed=block.num_proposed if block else 0,
        )

    def _draft(self, states: Sequence[RequestState], most: Sequence[int]) -> DraftBlock:
        """Drafts worth verifying, drawn with the noise that the target will use there."""
        output = self.model.draft(states, self.sampler.draw)
        is_greedy = [state.request.sampling.temperature == 0 for state in states]
        survival = self.calibration.survival(output.confidence, output.logits, is_greedy).tolist()
        token_ids = output.token_ids.tolist()
        ends = map(_num_to_stop, token_ids, [state.stop_token_ids for state in states])
        lengths = self.planner.lengths(survival, list(map(min, most, ends)))
        drafts = [ids[:length] for ids, length in zip(token_ids, lengths, strict=True)]
        drafts = follow_constraints(drafts, [state.constraint for state in states], most)
        return DraftBlock(
            token_ids=drafts,
            survival=[row[: len(ids)] for row, ids in zip(survival, drafts, strict=True)],
            logits=output.logits,
            num_proposed=output.token_ids.numel(),
        )

    def _reject(
        self,
        states: Sequence[RequestState],
        block: DraftBlock,
        logits: Tensor,
        slots: Tensor,
        positions: Tensor,
        drawn: Tensor,
        tokens: list[list[int]],
    ) -> Tensor:
        """Replace ``tokens`` of the requests that draw at random by those that rejection gives;
        returns ``drawn`` [N] i64 with them.

        Greedy requests need no chance, and a constraint cuts drafts by what they are, which
        rejection does not allow for: both keep their tokens.
        """
        drawn = drawn.clone()
        first = 0
        for row, (state, drafts) in enumerate(zip(states, block.token_ids, strict=True)):
            rows = slice(first, first + len(drafts) + 1)
            first = rows.stop
            is_free = state.request.sampling.temperature > 0 and state.constraint is None
            if not drafts or not is_free or bool((drawn[rows] < 0).any()):
                continue
            params = self.sampler.params(slots[rows])
            target = sampling_probs(logits[rows], params)
            own = self.sampler.params(slots[rows][:-1])
            draft = sampling_probs(block.logits[row, : len(drafts)], own)
            new = rejection_tokens(drafts, draft, target, params.seeds, positions[rows])
            tokens[row] = new
            drawn[first - len(drafts) - 1 :][: len(new)] = torch.tensor(new, device=drawn.device)
        return drawn


def _num_to_stop(token_ids: Sequence[int], stop_token_ids: Set[int]) -> int:
    """How many of the tokens can be part of the answer: up to the first that ends it."""
    stops = (place for place, token in enumerate(token_ids) if token in stop_token_ids)
    return next(stops, len(token_ids) - 1) + 1


def _split(values: list[int], counts: Sequence[int]) -> list[list[int]]:
    ends = np.cumsum(counts).tolist()
    return [values[end - count : end] for end, count in zip(ends, counts, strict=True)]
