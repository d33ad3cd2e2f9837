"""Constraints on answers: drafts that a constraint allows, and masks for every position drawn at.

What a constraint means is known outside of the engine; in here it is a ``TokenConstraint``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from deepinfer.errors import RowError

Mask = npt.NDArray[np.uint32]


class TokenConstraint(Protocol):
    """What one answer may be, token by token.  One per request; it knows the tokens pushed so far.

    A mask has one bit per token, little end first: uint32 [ceil(V / 32)].  Methods raise RowError
    when the constraint cannot go on, which ends its request and no other.
    """

    @property
    def is_finished(self) -> bool:
        """Whether the end token has come, or nothing else may come."""
        ...

    def num_allowed(self, draft_token_ids: Sequence[int]) -> int:
        """How many of the drafts, from the first on, may follow each other here."""
        ...

    def forced_tokens(self) -> list[int]:
        """The tokens that must follow here whatever the model says."""
        ...

    def fill_draft_masks(self, draft_token_ids: Sequence[int], out: Mask) -> int:
        """Masks for this position and after each draft into ``out`` [drafts + 1, words]."""
        ...

    def push(self, token_id: int) -> None:
        """Go on by one token."""
        ...


class AnswerConstraint:
    """The constraint of one running request.  ``error`` is why it cannot go on; nothing is allowed
    from then on."""

    def __init__(self, constraint: TokenConstraint) -> None:
        self._constraint = constraint
        self.error: RowError | None = None

    def drafts(self, draft_token_ids: list[int], most: int) -> list[int]:
        """The drafts to verify: those allowed, or forced tokens where these are more."""
        if self.error is None:
            try:
                forced = self._constraint.forced_tokens()[:most]
                allowed = draft_token_ids[: self._constraint.num_allowed(draft_token_ids)]
                return max(allowed, forced, key=len)  # the longer begins with the shorter
            except RowError as error:
                self.error = error
        return []

    def fill_masks(self, draft_token_ids: Sequence[int], out: Mask) -> None:
        """Masks for the next position and after each draft: ``out`` uint32 [drafts + 1, words]."""
        if self.error is None:
            try:
                self._constraint.fill_draft_masks(draft_token_ids, out)
                return
            except RowError as error:
                self.error = error
        out[:] = 0

    def push(self, token_id: int) -> bool:
        """Take the next token of the answer; whether it ends here."""
        try:
            self._constraint.push(token_id)
            return self._constraint.is_finished
        except RowError as error:
            self.error = error
        return False


def follow_constraints(
    drafts: Sequence[list[int]],
    constraints: Sequence[AnswerConstraint | None],
    most: Sequence[int],
) -> list[list[int]]:
    """Each request's drafts as far as its constraint allows them, at most ``most[i]``."""
    return [
        ids if constraint is None else constraint.drafts(ids, limit)
        for ids, constraint, limit in zip(drafts, constraints, most, strict=True)
    ]


def apply_constraints(
    logits: Tensor,
    constraints: Sequence[AnswerConstraint | None],
    row_counts: Sequence[int],
    drafts: Sequence[Sequence[int]] | None = None,
) -> Tensor:
    """Logits [N, V] with -inf where a constraint forbids the token.

    Request i has ``row_counts[i]`` consecutive rows: the next position, and one after each draft.
    Masks are computed here, on the host, while a device still computes the logits.  The input is
    returned when there are no constraints, and never written to.
    """
    if all(constraint is None for constraint in constraints):
        return logits
    num_rows, vocab_size = logits.shape
    masks = np.full((num_rows, -(-vocab_size // 32)), 0xFFFFFFFF, dtype=np.uint32)
    first = 0
    for i, (constraint, count) in enumerate(zip(constraints, row_counts, strict=True)):
        if constraint is not None:
            constraint.fill_masks(drafts[i] if drafts else (), masks[first : first + count])
        first += count
    return logits + _penalties(masks, logits.device)[:, :vocab_size]


def _penalties(masks: Mask, device: torch.device) -> Tensor:
    """Bits [N, words] u32 to [N, 32 * words] f32 on the device: 0 where the bit is set, else -inf.

    Eight at a time from a table: on a CPU three times as fast as filling by a boolean mask.
    """
    octets = torch.from_numpy(masks.view(np.uint8)).to(device)
    return _octet_penalties(device)[octets.int()].flatten(1)


@cache
def _octet_penalties(device: torch.device) -> Tensor:
    """[256, 8] f32: the penalties that each value of a byte stands for."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return torch.where(torch.from_numpy(bits).bool(), 0.0, -torch.inf).to(device)
