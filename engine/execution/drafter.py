"""``Drafter``: proposes tokens after each request's newest one; ``DecodeWorker`` verifies them."""

from __future__ import annotations

from collections.abc import Sequence, Set
from itertools import chain

from torch import Tensor

from deepinfer.engine.sampling.constraint import follow_constraints, forced_drafts
from deepinfer.engine.scheduling.request_state import RequestState
from deepinfer.engine.scheduling.schedule import DecodeBatch
from deepinfer.engine.speculation.calibration import Calibration
from deepinfer.engine.speculation.draft_planner import DraftPlanner

from .decode_stages import DraftBlock
from .decode_step import DecodeStep, StepOutput
from .drafts_ahead import Drafted, accepted_ends


class Drafter:
    """Proposes as many drafts as ``planner`` wants.  ``goes_ahead``: ``draft_ahead`` drafts for the
    next step as soon as the device knows where it starts; otherwise it does nothing."""

    def __init__(
        self,
        step: DecodeStep,
        planner: DraftPlanner,
        calibration: Calibration,
        *,
        goes_ahead: bool,
    ) -> None:
        self.planner = planner
        self._step = step
        self._calibration = calibration
        self._goes_ahead = goes_ahead
        self._ahead: Drafted | None = None
        self._next_depth: int | None = None

    @property
    def is_ahead(self) -> bool:
        """Whether drafts for the next step have been launched already."""
        return self._ahead is not None

    def depth(self, batch: DecodeBatch) -> int:
        """Drafts to propose for every request of the next step; call it once per step."""
        depth, self._next_depth = self._next_depth, None
        if not any(batch.num_drafts):
            depth = 0
        elif depth is None:
            depth = self.planner.depth(batch.num_drafts)
        if not depth:
            self._ahead = None
        return depth

    def drafts(self, batch: DecodeBatch, depth: int) -> tuple[Drafted, list[int]]:
        """Drafts for a step, and how many of each request may be verified, without waiting for the
        device."""
        ahead, self._ahead = self._ahead, None
        found = None if ahead is None else ahead.of(batch.states)
        if found is None:
            return self._draft(batch.states, depth), batch.num_drafts
        drafted, has_any = found
        limits = zip(batch.num_drafts, has_any, strict=True)
        return drafted, [limit if has else 0 for limit, has in limits]

    def draft_ahead(
        self, batch: DecodeBatch, drafted: Drafted, lens: Tensor, output: StepOutput, drawn: Tensor
    ) -> None:
        """Draft for the next step before the host has read this one; arguments as in
        ``accepted_ends``."""
        if not self._goes_ahead:
            return
        slots, newest, num_new = accepted_ends(drafted.token_ids, lens, output, drawn)
        self._next_depth = self.planner.depth(batch.num_drafts)
        if self._next_depth:
            self._step.newest[slots] = newest
            self._ahead = self._draft(batch.states, self._next_depth, num_new)

    def block(self, batch: DecodeBatch, depth: int) -> DraftBlock:
        """Drafts worth verifying, sampled with the same noise that the target will use there; waits
        for the device."""
        states = batch.states
        drafted, most = self.drafts(batch, depth)
        constraints = [state.constraint for state in states]
        forced = forced_drafts(constraints, most)  # while the device drafts
        chances, token_ids = drafted.survival.cpu().numpy(), drafted.token_ids.tolist()
        lengths = self.planner.lengths(chances, _to_stops(token_ids, states, most))
        drafts = [ids[:length] for ids, length in zip(token_ids, lengths, strict=True)]
        drafts = follow_constraints(drafts, constraints, forced)
        return DraftBlock(
            token_ids=drafts,
            survival=[row[: len(ids)] for row, ids in zip(chances.tolist(), drafts, strict=True)],
            logits=drafted.logits,
            num_proposed=drafted.token_ids.numel(),
        )

    def _draft(
        self, states: Sequence[RequestState], depth: int, num_new: Tensor | None = None
    ) -> Drafted:
        output = self._step.draft(states, depth, num_new)
        is_greedy = [state.request.sampling.temperature == 0 for state in states]
        survival = self._calibration.survival(output.confidence, output.logits, is_greedy)
        return Drafted(
            states=states,
            num_preemptions=[state.num_preemptions for state in states],
            token_ids=output.token_ids,
            survival=survival,
            logits=output.logits,
        )


def _to_stops(
    token_ids: Sequence[Sequence[int]], states: Sequence[RequestState], most: Sequence[int]
) -> Sequence[int]:
    """How many of each request's drafts can be part of its answer: at most ``most``, and none after
    a stop token."""
    stops: set[int] = set().union(*(state.stop_token_ids for state in states))
    if stops.isdisjoint(chain.from_iterable(token_ids)):
        return most
    ends = map(_num_to_stop, token_ids, (state.stop_token_ids for state in states))
    return list(map(min, most, ends))


def _num_to_stop(token_ids: Sequence[int], stop_token_ids: Set[int]) -> int:
    stops = (place for place, token in enumerate(token_ids) if token in stop_token_ids)
    return next(stops, len(token_ids) - 1) + 1
