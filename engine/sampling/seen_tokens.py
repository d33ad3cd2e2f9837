"""Token counts of requests with penalties, kept by slot on the device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deepinfer.engine.execution.staging import send, send_all
from deepinfer.engine.scheduling.request_state import RequestState
from deepinfer.kernels.sampling import penalize_logits

from .logit_rules import LogitRules, RuledRows


class SeenTokens:
    """Counts for requests with penalties; allocated when the first of them arrives.

    marks [S, V] i32: twice the number of occurrences in the answer, plus 1 if in the prompt.
    """

    def __init__(self, num_slots: int, device: str) -> None:
        self._device = device
        self._owners: list[LogitRules | None] = [None] * num_slots
        self._num_counted = [0] * num_slots
        self._penalties = torch.zeros((num_slots, 3), device=device)
        self._marks: Tensor | None = None

    def penalize(self, logits: Tensor, ruled: Sequence[RuledRows]) -> None:
        """Apply penalties in place to the rows [N, V] f32 of requests that have any."""
        found = [r for r in ruled if r.rules.penalties is not None]
        if not found:
            return
        if self._marks is None:
            shape = (len(self._owners), logits.shape[1])
            self._marks = torch.zeros(shape, dtype=torch.int32, device=self._device)
        self._count_new(self._marks, found)
        most = max(r.count for r in found)
        rows = np.concatenate([np.arange(r.first, r.first + r.count) for r in found])
        slots = np.repeat([r.state.slot for r in found], [r.count for r in found])
        drafts = np.concatenate([_drafts_before(r, most - 1) for r in found])
        sent = send_all({"rows": rows, "slots": slots, "drafts": drafts.T}, self._device)
        penalize_logits(logits, **sent, marks=self._marks, penalties=self._penalties)

    def _count_new(self, marks: Tensor, ruled: Sequence[RuledRows]) -> None:
        """Count tokens since a request's last call: all of them if it is new in its slot, or if
        the last update was interrupted by an out-of-memory error."""
        fresh, more = [], []
        for rows in ruled:
            slot, token_ids = rows.state.slot, rows.state.token_ids
            counted = self._num_counted[slot]
            if self._owners[slot] is not rows.rules or counted > len(token_ids):
                fresh.append(rows)
            elif counted < len(token_ids):
                more.append((slot, token_ids[counted:]))
            self._owners[slot] = None
        if fresh:
            index = send([rows.state.slot for rows in fresh], self._device)
            asked = np.array([rows.rules.penalties for rows in fresh])
            self._penalties[index] = send(asked, self._device, np.float32)
            marks[index] = 0
            known = [(rows.state.slot, *_marks_of(rows.state)) for rows in fresh]
            places = _slots_and_tokens([(slot, ids) for slot, ids, _ in known], self._device)
            marks[places] = send(np.concatenate([m for *_, m in known]), self._device, np.int32)
        if more:
            places = _slots_and_tokens([(slot, np.asarray(t)) for slot, t in more], self._device)
            twice = torch.full((), 2, dtype=torch.int32, device=self._device)
            marks.index_put_(places, twice, accumulate=True)
        for rows in ruled:
            slot = rows.state.slot
            self._owners[slot], self._num_counted[slot] = rows.rules, len(rows.state.token_ids)


def _marks_of(state: RequestState) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The distinct tokens of a request so far, and their marks."""
    prompt = state.token_ids[: state.num_prompt_tokens]
    answer = state.token_ids[state.num_prompt_tokens :]
    ids, where = np.unique(np.array([*prompt, *answer], dtype=np.int64), return_inverse=True)
    times = np.bincount(where[len(prompt) :], minlength=len(ids))
    in_prompt = np.bincount(where[: len(prompt)], minlength=len(ids)) > 0
    return ids, 2 * times + in_prompt


def _drafts_before(rows: RuledRows, most: int) -> NDArray[np.int64]:
    """[count, most]: the drafts that precede each row, -1 for none."""
    drafts = np.full(most, -1, dtype=np.int64)
    drafts[: rows.count - 1] = rows.drafts[: rows.count - 1]
    is_before = np.arange(most) < np.arange(rows.count)[:, None]
    return np.where(is_before, drafts, -1)


def _slots_and_tokens(
    parts: Sequence[tuple[int, NDArray[np.int64]]], device: str
) -> tuple[Tensor, ...]:
    slots = np.repeat([slot for slot, _ in parts], [len(ids) for _, ids in parts])
    return tuple(send([slots, np.concatenate([ids for _, ids in parts])], device))
