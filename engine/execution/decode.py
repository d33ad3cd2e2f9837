"""``DecodeWorker``: the next tokens of every decoding request, with or without drafts."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from deepinfer.engine.sampling.constraint import follow_constraints
from deepinfer.engine.sampling.sampler import apply_rules, new_logprobs
from deepinfer.engine.scheduling.request_state import RequestState
from deepinfer.engine.scheduling.schedule import DecodeBatch
from deepinfer.engine.speculation.calibration import Calibration
from deepinfer.engine.speculation.draft_planner import DraftPlanner, VerifyAll
from deepinfer.engine.speculation.dspark import accepted_tokens
from deepinfer.engine.speculation.rejection import rejection_tokens, sampling_probs
from deepinfer.engine.speculation.step_profile import step_clock
from deepinfer.engine.types import TokenLogprobs

from .decode_step import DecodeStep, StepOutput
from .staging import Returned


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


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedDecode:
    """A step on its way: what it was made of, and its results on the device.

    ``logits`` are the model's own, before rules and constraints.  ``used`` are those that tokens
    were drawn from.
    """

    batch: DecodeBatch
    block: DraftBlock | None
    counts: list[int]
    output: StepOutput
    used: Tensor
    drawn: Tensor
    returned: Returned
    started: float


class DecodeWorker:
    """The decode role: continues from the caches that a prefill left.

    A step can be launched before the one before it is finished, if neither drafts and the requests
    allow it (``can_follow``).
    """

    def __init__(
        self,
        step: DecodeStep,
        *,
        planner: DraftPlanner | None = None,
        calibration: Calibration | None = None,
        rejects: bool = False,
    ) -> None:
        self.step = step
        self.sampler = step.sampler
        self.planner = planner or VerifyAll()
        self.calibration = calibration or Calibration()
        self.rejects = rejects
        self._clock = step_clock(step.table.device)
        self._finished = self._clock()

    def run(self, batch: DecodeBatch) -> DecodeResult:
        return self.finish(self.launch(batch))

    def launch(self, batch: DecodeBatch) -> LaunchedDecode:
        """Start a step; nothing waits for the device unless it drafts."""
        started = self._clock()
        states = batch.states
        block = None
        if any(batch.num_drafts) and self.planner.is_worth_drafting(batch.num_drafts):
            block = self._draft(states, batch.num_drafts)
        drafts = block.token_ids if block else None
        counts = [1 + len(ids) for ids in drafts] if drafts else [1] * len(states)
        output = self.step.run(states, [state.next_position for state in states], drafts)
        used = apply_rules(output.logits, states, counts, drafts)
        drawn = self.sampler.draw(used, output.slots, output.positions)
        if drafts is None:
            self.step.newest[output.slots] = drawn
        return LaunchedDecode(
            batch=batch,
            block=block,
            counts=counts,
            output=output,
            used=used,
            drawn=drawn,
            returned=Returned(drawn),
            started=started,
        )

    def finish(self, launched: LaunchedDecode) -> DecodeResult:
        """What a launched step gave; waits for the device."""
        states, block, counts = launched.batch.states, launched.block, launched.counts
        drawn = launched.drawn
        tokens = _split(launched.returned.tolist(), counts)
        if block is not None:
            tokens = [accepted_tokens(*pair) for pair in zip(block.token_ids, tokens, strict=True)]
            if self.rejects:
                drawn = self._reject(launched, tokens)
            self.step.note_newest(states, [ids[-1] for ids in tokens])
        num_drafts = [count - 1 for count in counts]
        # A step launched early has waited for the one before it.
        begun, self._finished = max(launched.started, self._finished), self._clock()
        seconds = self._finished - begun
        self.planner.took(seconds, len(states), sum(num_drafts) if block else None)
        return DecodeResult(
            tokens=tokens,
            logprobs=new_logprobs(states, launched.output.logits, drawn, counts, tokens),
            num_drafts=num_drafts,
            survival=block.survival if block else [[] for _ in states],
            num_proposed=block.num_proposed if block else 0,
        )

    def _draft(self, states: Sequence[RequestState], most: Sequence[int]) -> DraftBlock:
        """Drafts worth verifying, drawn with the noise that the target will use there."""
        output = self.step.draft(states)
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

    def _reject(self, launched: LaunchedDecode, tokens: list[list[int]]) -> Tensor:
        """Replace ``tokens`` of the requests that draw at random by those that rejection gives;
        returns the drawn tokens [N] i64 with them.

        Greedy requests need no chance, and a constraint cuts drafts by what they are, which
        rejection does not allow for: both keep their tokens.
        """
        states, block, logits = launched.batch.states, launched.block, launched.used
        slots, positions = launched.output.slots, launched.output.positions
        drawn = launched.drawn.clone()
        assert block is not None
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


def can_follow(states: Sequence[RequestState]) -> bool:
    """Whether a step of these requests may be launched before the one before it is read: no rule
    or constraint has to see the tokens in between, and no log-probability is read from logits that
    the next step overwrites."""
    return all(
        state.rules is None and state.constraint is None and not state.request.sampling.logprobs
        for state in states
    )


def _num_to_stop(token_ids: Sequence[int], stop_token_ids: Set[int]) -> int:
    """How many of the tokens can be part of the answer: up to the first that ends it."""
    stops = (place for place, token in enumerate(token_ids) if token in stop_token_ids)
    return next(stops, len(token_ids) - 1) + 1


def _split(values: list[int], counts: Sequence[int]) -> list[list[int]]:
    ends = np.cumsum(counts).tolist()
    return [values[end - count : end] for end, count in zip(ends, counts, strict=True)]
