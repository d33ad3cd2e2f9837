"""Drafts made before the host has read the step that they follow.

The device knows first which drafts were accepted.  It stores each request's newest token and drafts
after it while the host still processes the results.  Drafts of requests that end with that step are
unused.  Requests that join have none in their first step: drafting for them alone would read all
weights of the draft stages, which costs more time than the one or two tokens that it could add to
each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from deepinfer.engine.scheduling.request_state import RequestState

from .decode_step import StepOutput
from .staging import send


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Drafted:
    """Drafts of R requests: token_ids [R, D] i64, survival [R, D] f32, and if kept, the logits
    [R, D, V] f32 that they were sampled from.

    ``num_preemptions`` of each request so far: a request that was preempted since samples a token
    at the end of its repeated prefill, which these drafts do not follow.
    """

    states: Sequence[RequestState]
    num_preemptions: Sequence[int]
    token_ids: Tensor
    survival: Tensor
    logits: Tensor | None = None

    def of(self, states: Sequence[RequestState]) -> tuple[Drafted, list[bool]] | None:
        """Drafts for these requests, and which of them have any; None if fewer than half do."""
        known = enumerate(zip(self.states, self.num_preemptions, strict=True))
        row_of = {id(s): row for row, (s, count) in known if s.num_preemptions == count}
        rows = [row_of.get(id(state)) for state in states]
        has_any = [row is not None for row in rows]
        if 2 * sum(has_any) < len(rows):
            return None
        if rows == list(range(len(self.states))):
            return self, has_any
        index = send([row or 0 for row in rows], self.survival.device)
        token_ids, survival = self.token_ids[index], self.survival[index]
        counts = [state.num_preemptions for state in states]
        found = replace(
            self, states=states, num_preemptions=counts, token_ids=token_ids, survival=survival
        )
        return found, has_any


def accepted_ends(
    token_ids: Tensor, lens: Tensor, output: StepOutput, drawn: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """``accepted_tokens`` on the device: slots, newest tokens and numbers of new tokens of R
    requests, each [R] i64.

    Shapes: token_ids [R, D] i64, of which the first ``lens - 1`` were verified (lens [R] i64);
    drawn [T] i64, one for each token of ``output``.
    """
    depth = token_ids.shape[1]
    starts = lens.cumsum(0) - lens
    places = torch.arange(depth + 1, device=lens.device)
    target = drawn[(starts[:, None] + places).clamp_(max=len(drawn) - 1)]
    is_right = (token_ids == target[:, :-1]) & (places[:-1] < (lens - 1)[:, None])
    num_accepted = is_right.long().cumprod(1).sum(1)
    newest = target.gather(1, num_accepted[:, None])[:, 0]
    return output.slots[starts], newest.clamp_(min=0), num_accepted + 1
