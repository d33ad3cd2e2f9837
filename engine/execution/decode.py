"""``DecodeWorker``: computes the next tokens of decoding requests, with or without drafts."""

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
from deepinfer.engine.speculation.step_profile import step_clock
from deepinfer.kernels.dspark import verify_drafts

from .decode_stages import DecodeResult, DraftBlock, DrawnDecode, LaunchedDecode, PlannedDecode
from .decode_step import DecodeStep
from .drafter import Drafter
from .staging import HostCopy, send
from .step_tokens import choose_drafts
from .turns import TakesTurns


class DecodeWorker:
    """The decode role: continues from the caches that prefill filled.

    A step without drafts can be launched before the tokens of the previous one are read, if the
    requests allow it (``can_follow``).  Its own tokens are sampled after that, since penalties and
    constraints depend on the previous ones.

    With ``waits_for_drafts`` the host reads drafts before they are verified.  Otherwise it does so
    only if it has to select them; else it reads them while the device verifies, and the device
    drafts for the next step before this one is read, so that it never waits for the host.
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
        # An asynchronous device gets its work before the host does anything else; on the CPU,
        # launching the model is running it.
        self._runs_beside = torch.device(step.table.device).type != "cpu"
        self.waits_for_drafts = not step.graphs.is_enabled
        self.drafter = Drafter(
            step,
            planner or VerifyAll(step.num_drafts),
            calibration or Calibration(),
            # Rejection sampling may keep other tokens than the device has computed; and several
            # ranks must agree on every pass, which a rank without requests would not make.
            goes_ahead=not rejects and not isinstance(step.model.model, TakesTurns),
        )
        self._clock = step_clock(step.table.device)
        self._finished = self._clock()

    def run(self, batch: DecodeBatch, depth: int | None = None) -> DecodeResult:
        """Run a whole step; ``depth`` as in ``plan``."""
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
        """Draft if there is something to draft, which waits for the device; ``depth``: the result
        of ``Drafter.depth`` if the caller has asked already."""
        started = self._clock()
        depth = self.drafter.depth(batch) if depth is None else depth
        block = self.drafter.block(batch, depth) if depth else None
        counts = [1 + len(ids) for ids in block.token_ids] if block else [1] * len(batch.states)
        return PlannedDecode(batch=batch, block=block, counts=counts, started=started)

    def start_masks(self, plan: PlannedDecode) -> StepMasks:
        """Start computing masks; the tokens before the step must be known."""
        constraints = [state.constraint for state in plan.batch.states]
        step = self.step
        return StepMasks(constraints, plan.counts, plan.drafts, step.vocab_size, step.table.device)

    def launch(self, plan: PlannedDecode) -> LaunchedDecode:
        """Launch the model, without waiting for the device."""
        states = plan.batch.states
        output = self.step.run(states, [state.next_position for state in states], plan.drafts)
        return LaunchedDecode(plan=plan, output=output)

    def draw(self, launched: LaunchedDecode, masks: StepMasks) -> DrawnDecode:
        """Sample from the logits once the masks are ready, without waiting for the device."""
        plan, output = launched.plan, launched.output
        states, counts = plan.batch.states, plan.counts
        used = self.sampler.adjust(output.logits, states, counts, plan.drafts, masks)
        drawn = self.sampler.draw(used, output.slots, output.positions)
        if plan.block is None:  # -1 (no usable logits) ends a row, but the next step may be running
            self.step.newest[output.slots] = drawn.clamp(min=0)
        return DrawnDecode(
            plan=plan, output=output, used=used, drawn=drawn, returned=HostCopy(drawn)
        )

    def finish(self, step: DrawnDecode) -> DecodeResult:
        """The results of a step; waits for the device."""
        states, block, counts = step.plan.batch.states, step.plan.block, step.plan.counts
        drawn = step.drawn
        if block is not None and not self.drafter.is_ahead:
            self.drafter.planner.look_ahead(step.plan.batch.num_drafts)
        tokens = _split(step.returned.tolist(), counts)
        if block is not None:
            is_usable = [min(ids) >= 0 for ids in tokens] if self.rejects else []
            tokens = [accepted_tokens(*pair) for pair in zip(block.token_ids, tokens, strict=True)]
            if self.rejects:
                drawn = self._reject(step, tokens, is_usable)
            if not self.drafter.is_ahead:
                self.step.note_newest(states, [ids[-1] for ids in tokens])
        num_drafts = [count - 1 for count in counts]
        # A step that was launched early waited for the previous one.
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
        """Draft, select ``budget`` drafts on the device, verify and sample; the host reads the
        drafts while the device verifies them."""
        started, states = self._clock(), batch.states
        drafted, most = self.drafter.drafts(batch, depth)
        first = [state.next_position for state in states]
        budget = min(budget, sum(min(limit, depth) for limit in most))
        chosen = choose_drafts(drafted.token_ids, drafted.survival, first, most, budget)
        returned = [HostCopy(x) for x in (drafted.token_ids, drafted.survival, chosen.lens)]
        output = self.step.run(states, first, chosen)
        drawn = self.sampler.draw(output.logits, output.slots, output.positions)
        drawn_back = HostCopy(drawn)
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

    def _reject(
        self, step: DrawnDecode, tokens: list[list[int]], is_usable: Sequence[bool]
    ) -> Tensor:
        """Replace the ``tokens`` of randomly sampled requests by those of rejection sampling;
        returns the drawn tokens [N] i64 with the same replacements.

        Greedy requests, constrained requests (whose drafts were truncated depending on their
        values, which would bias rejection sampling) and requests without usable logits keep theirs.
        """
        block, counts = step.plan.block, step.plan.counts
        assert block is not None and block.logits is not None
        lens = [
            _num_drawn(ids) if usable and _is_free(state) else 0
            for state, ids, usable in zip(
                step.plan.batch.states, block.token_ids, is_usable, strict=True
            )
        ]
        if not any(lens):
            return step.drawn
        depth = block.logits.shape[1]
        first = (np.cumsum(counts) - counts).tolist()
        ids = [[*ids, *[0] * (depth - len(ids))] for ids in block.token_ids]
        rows = [[*row, *more] for row, *more in zip(ids, first, lens, strict=True)]
        sent = send(rows, step.drawn.device)
        starts = sent[:, depth].contiguous()
        row = self.sampler.params(step.output.slots[starts])
        verified = verify_drafts(
            step.used, block.logits.contiguous(), sent[:, :depth].contiguous(), starts,
            sent[:, depth + 1].contiguous(), row.temperature, row.top_p, row.top_k, row.min_p,
            row.seeds, step.output.positions,
        )  # fmt: skip
        places: list[int] = []
        new: list[int] = []
        for number, (num_kept, token) in enumerate(verified.tolist()):
            if lens[number]:
                tokens[number] = [*block.token_ids[number][:num_kept], token]
                places += range(first[number], first[number] + num_kept + 1)
                new += tokens[number]
        drawn = step.drawn.clone()
        at, values = send([places, new], drawn.device)
        drawn[at] = values
        return drawn


def _num_drawn(ids: list[int]) -> int:
    """Drafts before the first -1, which stands for a draft without usable logits."""
    return ids.index(-1) if -1 in ids else len(ids)


def _is_free(state: RequestState) -> bool:
    """Whether a request's drafts may be verified by rejection sampling."""
    return state.request.sampling.temperature > 0 and state.constraint is None


def can_follow(states: Sequence[RequestState]) -> bool:
    """Whether a step may be launched before these requests' previous step is read: it overwrites
    the logits, from which log-probabilities might still be needed."""
    return not any(state.request.sampling.logprobs for state in states)


def _is_unruled(state: RequestState) -> bool:
    """Whether neither penalties nor a constraint must see drafts before they are verified."""
    return state.rules is None and state.constraint is None


def _split(values: list[int], counts: Sequence[int]) -> list[list[int]]:
    ends = np.cumsum(counts).tolist()
    return [values[end - count : end] for end, count in zip(ends, counts, strict=True)]
