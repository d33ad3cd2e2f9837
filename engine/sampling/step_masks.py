"""Constraint masks of one step, computed by a thread while the model computes the logits."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from deepinfer.engine.execution.staging import host_zeros, send
from deepinfer.errors import RowError
from deepinfer.kernels.sampling import mask_logits

from .constraint import AnswerConstraint, Mask


class StepMasks:
    """Created when the tokens before a step and its drafts are known; ``apply`` waits for masks.

        with StepMasks(constraints, row_counts, drafts, vocab_size, device) as masks:
            logits = ...
            masks.apply(logits)

    Nothing else may touch the constraints inside the block.  Request i has ``row_counts[i]``
    consecutive rows of logits: the next position, and one after each of its drafts.
    """

    def __init__(
        self,
        constraints: Sequence[AnswerConstraint | None],
        row_counts: Sequence[int],
        drafts: Sequence[Sequence[int]] | None,
        vocab_size: int,
        device: torch.device | str,
    ) -> None:
        self._held: list[AnswerConstraint] = []
        held_drafts: list[Sequence[int]] = []
        rows: list[int] = []
        failed_rows: list[int] = []  # their masks stay zero
        first = 0
        for i, (constraint, count) in enumerate(zip(constraints, row_counts, strict=True)):
            if constraint is not None and constraint.error is not None:
                failed_rows += range(first, first + count)
            elif constraint is not None:
                self._held.append(constraint)
                held_drafts.append(drafts[i] if drafts else ())
                rows += range(first, first + count)
            first += count
        self._rows = rows + failed_rows
        self._filled: Future[list[RowError | None]] | None = None
        if self._rows:
            shape = len(self._rows), -(-vocab_size // 32)
            self._masks = host_zeros(shape, torch.int32, device)
            bits = self._masks.numpy().view(np.uint32)
            self._filled = _thread().submit(_fill, self._held, held_drafts, bits)

    def __enter__(self) -> StepMasks:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._filled is not None:
            wait([self._filled])

    def __bool__(self) -> bool:
        """Whether any request has a constraint."""
        return bool(self._rows)

    def apply(self, logits: Tensor) -> None:
        """Set logits [N, V] f32 of the step to -inf, in place, where the token is not allowed.

        For a constraint that cannot continue nothing is allowed; its ``error`` says why.
        """
        if self._filled is None:
            return
        for constraint, error in zip(self._held, self._filled.result(), strict=True):
            constraint.error = error
        masks = self._masks.to(logits.device, non_blocking=True)
        mask_logits(logits, masks, send(self._rows, logits.device))


def _fill(
    constraints: Sequence[AnswerConstraint], drafts: Sequence[Sequence[int]], masks: Mask
) -> list[RowError | None]:
    """Fill the masks, with one call for each class of constraints."""
    errors: list[RowError | None] = []
    first = 0
    pairs = zip(constraints, drafts, strict=True)
    for kind, group in groupby(pairs, key=lambda pair: type(pair[0].rule)):
        rules, ids = zip(*((constraint.rule, tokens) for constraint, tokens in group), strict=True)
        end = first + len(ids) + sum(map(len, ids))
        errors += kind.fill_masks(rules, ids, masks[first:end])
        first = end
    return errors


@cache
def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="masks")
