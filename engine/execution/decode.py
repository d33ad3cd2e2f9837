"""``DecodeWorker``: the next tokens of every decoding request, with or without drafts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from deepinfer.engine.sampling.sampler import new_logprobs
from deepinfer.engine.sampling.step_masks import StepMasks
from deepinfer.engine.scheduling.request_state import RequestState
from deepinfer.engine.scheduling.schedule import DecodeBatch
from deepinfer.engine.speculation.calibration import Calibration
from deepinfer.engine.speculation.draft_planner import DraftPlanner, VerifyAll
from deepinfer.engine.speculation.dspark import accepted_tokens
from deepinfer.engine.speculation.rejection import rejection_tokens, sampling_probs
from deepinfer.engine.speculation.step_profile import step_clock

from .decode_stages import DecodeResult, DraftBlock, DrawnDecode, LaunchedDecode, PlannedDecode
from .decode_step import DecodeStep
from .drafter import Drafter
from .staging import Returned
from .step_tokens import choose_drafts
from .turns import TakesTurns


class DecodeWorker:
    """The decode role: continues from the caches that a prefill left.

    A step without drafts can be launched before the tokens of the one before it are read, if the
    requests allow it (``can_follow``); its own are drawn after that, as rules and constraints have
    to know them.  With ``waits_for_drafts`` the host reads drafts before they are verified; without
    it only where it has to choose, and else reads them while the device verifies, and lets it draft
    for the next step before this one is read: the device goes on while the host notes what came.
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
        self.rejects = rejects
        # A device that computes by itself is set to work before anything else is; on the CPU,
        # launching a model is running it.
        self._runs_beside = torch.device(step.table.device).type != "cpu"
        self.waits_for_drafts = not step.graphs.is_enabled
        self.drafter = Drafter(
            step,
            planner or VerifyAll(step.num_drafts),
            calibration or Calibration(),
            # Rejection may keep other tokens than the device knows of; passes of several ranks are
            # agreed upon, and the last request's end leaves none to make.
            goes_ahead=not rejects and not isinstance(step.model.model, TakesTurns),
        )
        self._clock = step_clock(step.table.device)
        self._finished = self._clock()

    def run(self, batch: DecodeBatch, depth: int | None = None) -> DecodeResult:
        """A whole step; ``depth`` as in ``plan``."""
        depth = self.drafter.depth(batch) if depth is None else depth
        if depth and not self.waits_for_drafts and all(map(_is_unruled, batch.states)):
            budget = self.drafter.planner.budget(batch.num_drafts, depth)
            if budget is not None:
                return self.finish(self._draw_unread(batch, depth, budget))
        plan = self.plan(batch, depth)
        launched = self.launch(plan) if self._runs_beside else None
        with self.start_masks(plan) as masks:
            drawn = self.draw(launched or self.launch(plan), masks)
        return self.finish(drawn)

    def plan(self, batch: DecodeBatch, depth: int | None = None) -> PlannedDecode:
        """Waits for the device if it drafts; ``depth`` is what was asked for already."""
        started = self._clock()
        depth = self.drafter.depth(batch) if depth is None else depth
        block = self.drafter.block(batch, depth) if depth else None
        counts = [1 + len(ids) for ids in block.token_ids] if block else [1] * len(batch.states)
        return PlannedDecode(batch=batch, block=block, counts=counts, started=started)

    def start_masks(self, plan: PlannedDecode) -> StepMasks:
        """Begin with the masks; the tokens before the step are known."""
        constraints = [state.constraint for state in plan.batch.states]
        step = self.step
        return StepMasks(constraints, plan.counts, plan.drafts, step.vocab_size, step.table.device)

    def launch(self, plan: PlannedDecode) -> LaunchedDecode:
        """Start the model; nothing waits for the device."""
        states = plan.batch.states
        output = self.step.run(states, [state.next_position for state in states], plan.drafts)
        return LaunchedDecode(plan=plan, output=output)

    def draw(self, launched: LaunchedDecode, masks: StepMasks) -> DrawnDecode:
        """Draw from the logits once the masks are there; nothing waits for the device."""
        plan, output = launched.plan, launched.output
        states, counts = plan.batch.states, plan.counts
        used = self.sampler.adjust(output.logits, states, counts, plan.drafts, masks)
        drawn = self.sampler.draw(used, output.slots, output.positions)
        if plan.block is None:  # a row without usable logits ends, but the next step may run it
            self.step.newest[output.slots] = drawn.clamp(min=0)
        return DrawnDecode(
            plan=plan, output=output, used=used, drawn=drawn, returned=Returned(drawn)
        )

    def finish(self, step: DrawnDecode) -> DecodeResult:
        """What a step gave; waits for the device."""
        states, block, counts = step.plan.batch.states, step.plan.block, step.plan.counts
        drawn = step.drawn
        if block is not None and not self.drafter.is_ahead:
            self.drafter.planner.look_ahead(step.plan.batch.num_drafts)
        tokens = _split(step.returned.tolist(), counts)
        if block is not None:
            tokens = [accepted_tokens(*pair) for pair in zip(block.token_ids, tokens, strict=True)]
            if self.rejects:
                drawn = self._reject(step, tokens)
            if not self.drafter.is_ahead:
                self.step.note_newest(states, [ids[-1] for ids in tokens])
        num_drafts = [count - 1 for count in counts]
        # A step launched early has waited for the one before it.
        begun, self._finished = max(step.plan.started, self._finished), self._clock()
        seconds = self._finished - begun
        self.drafter.planner.took(seconds, len(states), sum(num_drafts) if block else None)
        return DecodeResult(
            tokens=tokens,
            logprobs=new_logprobs(states, step.output.logits, drawn, counts, tokens),
            num_drafts=num_drafts,
            survival=block.survival if block else [[] for _ in states],
            num_proposed=block.num_proposed if block else 0,
        )

    def _draw_unread(self, batch: DecodeBatch, depth: int, budget: int) -> DrawnDecode:
        """Draft, choose ``budget`` drafts on the device, verify and draw: the host reads the drafts
        while the device verifies them."""
        started, states = self._clock(), batch.states
        drafted, most = self.drafter.drafts(batch, depth)
        first = [state.next_position for state in states]
        budget = min(budget, sum(min(limit, depth) for limit in most))
        chosen = choose_drafts(drafted.token_ids, drafted.survival, first, most, budget)
        returned = [Returned(x) for x in (drafted.token_ids, drafted.survival, chosen.lens)]
        output = self.step.run(states, first, chosen)
        drawn = self.sampler.draw(output.logits, output.slots, output.positions)
        drawn_back = Returned(drawn)
        token_ids, chances, counts = (tensor.tolist() for tensor in returned)
        self.drafter.planner.note(chances)
        self.drafter.draft_ahead(batch, drafted, chosen.lens, output, drawn)
        block = DraftBlock(
            token_ids=[ids[: n - 1] for ids, n in zip(token_ids, counts, strict=True)],
            survival=[row[: n - 1] for row, n in zip(chances, counts, strict=True)],
            logits=drafted.logits,
            num_proposed=len(states) * depth,
        )
        plan = PlannedDecode(batch=batch, block=block, counts=counts, started=started)
        return DrawnDecode(
            plan=plan, output=output, used=output.logits, drawn=drawn, returned=drawn_back
        )

    def _reject(self, step: DrawnDecode, tokens: list[list[int]]) -> Tensor:
        """Replace ``tokens`` of the requests that draw at random by those that rejection gives;
        returns the drawn tokens [N] i64 with them.

        Greedy requests need no chance, and a constraint cuts drafts by what they are, which
        rejection does not allow for: both keep their tokens.
        """
        states, block, logits = step.plan.batch.states, step.plan.block, step.used
        slots, positions = step.output.slots, step.output.positions
        drawn = step.drawn.clone()
        assert block is not None and block.logits is not None
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
    """Whether a step of these requests may be launched before the one before it is read: no
    log-probability is read from logits that the next step overwrites."""
    return not any(state.request.sampling.logprobs for state in states)


def _is_unruled(state: RequestState) -> bool:
    """Whether no rule and no constraint has to see drafts before they are verified."""
    return state.rules is None and state.constraint is None


def _split(values: list[int], counts: Sequence[int]) -> list[list[int]]:
    ends = np.cumsum(counts).tolist()
    return [values[end - count : end] for end, count in zip(ends, counts, strict=True)]
