"""Token masks of many answers at once.  A mask has one bit per token, least significant first."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import llguidance
import numpy as np
import numpy.typing as npt

from deepinfer.errors import RowError

from .vocabulary import ConstraintVocabulary

if TYPE_CHECKING:
    from .matcher import ConstraintMatcher

Mask = npt.NDArray[np.uint32]

# More threads do not help: a batch takes a few milliseconds on one.
_MOST_THREADS = 8
ALL_BUT_END, BY_GRAMMAR = -1, -2


@dataclass(frozen=True, slots=True)
class MaskPlan:
    """How to compute the masks of one answer.

    ``rows``: for the next position and after each draft, the only token allowed, or
    ``ALL_BUT_END``, or ``BY_GRAMMAR``.  ``grammar``: the llguidance matcher.
    """

    grammar: Any
    rows: list[int]
    draft_token_ids: Sequence[int]

    def grammar_job(self, first: int) -> tuple[Any, int, list[int]] | None:
        """The work for llguidance: its matcher, the row of its first mask, and the drafts after it.
        Rows in between with only one token allowed are overwritten later."""
        if BY_GRAMMAR not in self.rows:
            return None
        begin = self.rows.count(ALL_BUT_END)  # the first row that the grammar determines
        end = max(place for place, kind in enumerate(self.rows) if kind == BY_GRAMMAR)
        return self.grammar, first + begin, list(self.draft_token_ids[begin:end])


def fill_masks(
    matchers: Sequence[ConstraintMatcher], drafts: Sequence[Sequence[int]], out: Mask
) -> list[RowError | None]:
    """Fill ``out`` with masks for the next position of each answer and after each of its drafts.

    ``out``: contiguous uint32 [sum(1 + drafts), words], answer by answer.  Rows after a draft that
    is not allowed are undefined.  Computed in native threads; matchers must not be used meanwhile,
    and are unchanged afterwards.
    Returns, for each answer, the error if it failed (``constraint_too_complex``), else None.
    """
    out[:] = 0
    errors: list[RowError | None] = []
    firsts, plans = [], []
    first = 0
    for matcher, ids in zip(matchers, drafts, strict=True):
        try:
            plans.append(matcher.plan(ids))
            errors.append(None)
        except RowError as error:
            plans.append(MaskPlan(None, [], ()))
            errors.append(error)
        firsts.append(first)
        first += 1 + len(ids)
    jobs = [plan.grammar_job(at) for plan, at in zip(plans, firsts, strict=True)]
    _run([job for job in jobs if job is not None], out, matchers)
    for i, (matcher, plan, job) in enumerate(zip(matchers, plans, jobs, strict=True)):
        if job is not None and job[0].is_error():
            errors[i] = matcher.failure()
        for row, kind in enumerate(plan.rows, firsts[i]):
            if errors[i] is not None:
                out[row] = 0
            elif kind == ALL_BUT_END:
                _allow_all_but_end(out[row], matcher.vocabulary)
            elif kind != BY_GRAMMAR:
                out[row] = 0
                out[row, kind // 32] = 1 << kind % 32
    return errors


def _run(
    jobs: list[tuple[Any, int, list[int]]], out: Mask, matchers: Sequence[ConstraintMatcher]
) -> None:
    """Let llguidance fill the masks of ``jobs``; it needs rows as wide as its vocabulary."""
    if not jobs:
        return
    executor = _executor()
    num_words = -(-matchers[0].vocabulary.num_tokens // 32)
    masks = out if out.shape[1] == num_words else np.zeros((len(out), num_words), np.uint32)
    place = (masks.ctypes.data, num_words * 4, len(masks))
    with_drafts = [job for job in jobs if job[2]]
    without = [(grammar, row) for grammar, row, ids in jobs if not ids]
    if without:
        executor.unsafe_compute_mask_ptr(without, *place)
    if with_drafts:
        executor.unsafe_compute_mask_ptr_with_draft_token(with_drafts, *place)
    if masks is not out:
        width = min(num_words, out.shape[1])
        out[:, :width] = masks[:, :width]


def num_threads() -> int:
    """Number of threads that compute masks."""
    return min(_MOST_THREADS, len(os.sched_getaffinity(0)))


@cache
def _executor() -> Any:
    return llguidance.LLExecutor(num_threads())


def is_allowed(mask: Mask, token_id: int) -> bool:
    """Whether the bit of ``token_id`` is set."""
    return token_id // 32 < len(mask) and bool(mask[token_id // 32] >> np.uint32(token_id % 32) & 1)


def _allow_all_but_end(mask: Mask, vocabulary: ConstraintVocabulary) -> None:
    mask[:] = 0xFFFFFFFF
    if vocabulary.vocab_size % 32:
        mask[-1] = (1 << vocabulary.vocab_size % 32) - 1
    mask[vocabulary.eos_id // 32] &= ~np.uint32(1 << vocabulary.eos_id % 32)
