"""Constraints on answers, as the engine sees them, and the drafts that they allow.

What a constraint means is defined outside the engine; in here it is a ``TokenConstraint``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from deepinfer.errors import RowError

Mask = npt.NDArray[np.uint32]


class TokenConstraint(Protocol):
    """Which tokens an answer may continue with.  One per request; it tracks the tokens pushed so
    far.

    A mask has one bit per token, least significant first: uint32 [ceil(V / 32)].  Methods raise
    RowError if the constraint cannot continue, which ends its request and no other.
    """

    @property
    def is_finished(self) -> bool:
        """Whether the end token was pushed, or nothing else is allowed."""
        ...

    def num_allowed(self, draft_token_ids: Sequence[int]) -> int:
        """Length of the longest prefix of the drafts that is allowed here."""
        ...

    def forced_tokens(self) -> list[int]:
        """The tokens that must follow here, whatever the logits are."""
        ...

    @staticmethod
    def fill_masks(
        constraints: Sequence[Any], drafts: Sequence[Sequence[int]], out: Mask
    ) -> list[RowError | None]:
        """Write masks of several constraints of this class, for the next position of each and
        after each of its drafts, to ``out`` [sum(1 + drafts), words]; rows after a draft that is
        not allowed are all zero.

        Called by a thread while the model runs; nothing else touches the constraints meanwhile.
        Returns, for each constraint, why it cannot continue, or None.
        """
        ...

    def push(self, token_id: int) -> None:
        """Advance by one token."""
        ...


class AnswerConstraint:
    """The constraint of one running request.  ``error``: why it cannot continue; once it is set,
    nothing is allowed."""

    def __init__(self, constraint: TokenConstraint) -> None:
        self.rule = constraint
        self.error: RowError | None = None

    def forced(self, most: int) -> list[int]:
        """The tokens that must follow here, at most ``most``."""
        try:
            return [] if self.error else self.rule.forced_tokens()[:most]
        except RowError:
            return []  # it fails somewhere ahead, which the mask at that position will report

    def drafts(self, draft_token_ids: list[int], forced: list[int]) -> list[int]:
        """The drafts to verify: the allowed ones, or the forced tokens if these are more."""
        try:
            longest = max(draft_token_ids, forced, key=len)
            if self.error or not longest:
                return []
            allowed = longest[: self.rule.num_allowed(longest)]
            return max(allowed, forced, key=len)  # one is a prefix of the other
        except RowError:
            return []

    def push(self, token_id: int) -> bool:
        """Push the next token of the answer; returns whether it ends here."""
        try:
            self.rule.push(token_id)
            return self.rule.is_finished
        except RowError as error:
            self.error = error
        return False


def forced_drafts(
    constraints: Sequence[AnswerConstraint | None], most: Sequence[int]
) -> list[list[int]]:
    """The forced tokens of each request, at most ``most[i]``."""
    pairs = zip(constraints, most, strict=True)
    return [[] if constraint is None else constraint.forced(limit) for constraint, limit in pairs]


def follow_constraints(
    drafts: Sequence[list[int]],
    constraints: Sequence[AnswerConstraint | None],
    forced: Sequence[list[int]],
) -> list[list[int]]:
    """Each request's drafts as far as its constraint allows them, or ``forced`` tokens."""
    return [
        ids if constraint is None else constraint.drafts(ids, must)
        for ids, constraint, must in zip(drafts, constraints, forced, strict=True)
    ]
