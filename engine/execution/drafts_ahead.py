"""Drafts made before the host has read the step that they follow.

The device knows first which drafts were accepted.  It notes each request's newest token and drafts
after it, while the host still works on what came.  Requests that end with that step leave their
drafts unused.  Those that join have none in their first step: a pass of the draft stages for them
alone would wait for nothing, but it reads all weights of these stages, as one for everybody does,
and that takes longer than the one or two tokens that it could bring to each.
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
    """Drafts of R requests: token_ids [R, D] i64 and survival [R, D] f32; where they are kept,
    logits [R, D, V] f32 that they were drawn from.

    ``num_preemptions`` of each until now.  One that is preempted draws a token when its prefill is
    done again: drafts from before do not follow that.
    """

    states: Sequence[RequestState]
    num_preemptions: Sequence[int]
    token_ids: Tensor
    survival: Tensor
    logits: Tensor | None = None

    def of(self, states: Sequence[RequestState]) -> tuple[Drafted, list[bool]] | None:
        """The drafts of these requests, and which of them have any; None if less than half do."""
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
    """What ``accepted_tokens`` finds, on the device: of R requests the slots, the newest tokens and
    how many are new, each [R] i64.

    Shapes: token_ids [R, D] i64 with the drafts of each first, lens [R] i64 those that were
    verified and one more, drawn [T] i64 for the tokens of ``output``.
    """
    depth = token_ids.shape[1]
    starts = lens.cumsum(0) - lens
    places = torch.arange(depth + 1, device=lens.device)
    target = drawn[(starts[:, None] + places).clamp_(max=len(drawn) - 1)]
    is_right = (token_ids == target[:, :-1]) & (places[:-1] < (lens - 1)[:, None])
    num_accepted = is_right.long().cumprod(1).sum(1)
    newest = target.gather(1, num_accepted[:, None])[:, 0]
    return output.slots[starts], newest.clamp_(min=0), num_accepted + 1
