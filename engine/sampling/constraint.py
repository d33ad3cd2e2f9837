"""Constraints on answers: what one is, and the drafts that it allows.

What a constraint means is known outside of the engine; in here it is a ``TokenConstraint``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

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

    @staticmethod
    def fill_masks(
        constraints: Sequence[Any], drafts: Sequence[Sequence[int]], out: Mask
    ) -> list[RowError | None]:
        """Masks of several constraints of this class, for the next position of each and after each
        of its drafts, into ``out`` [sum(1 + drafts), words]; rows after a draft that is not allowed
        are all zero.

        A thread beside the model calls it, and nothing else touches the constraints meanwhile.
        Returns, for each, why it cannot go on, or None.
        """
        ...

    def push(self, token_id: int) -> None:
        """Go on by one token."""
        ...


class AnswerConstraint:
    """The constraint of one running request.  ``error`` is why it cannot go on; nothing is allowed
    from then on."""

    def __init__(self, constraint: TokenConstraint) -> None:
        self.rule = constraint
        self.error: RowError | None = None

    def forced(self, most: int) -> list[int]:
        """At most so many of the tokens that must follow here."""
        try:
            return [] if self.error else self.rule.forced_tokens()[:most]
        except RowError:
            return []  # it gives up somewhere ahead; the mask of that place will say so

    def drafts(self, draft_token_ids: list[int], forced: list[int]) -> list[int]:
        """The drafts to verify: those allowed, or the forced tokens where these are more."""
        try:
            longest = max(draft_token_ids, forced, key=len)
            if self.error or not longest:
                return []
            allowed = longest[: self.rule.num_allowed(longest)]
            return max(allowed, forced, key=len)  # the longer begins with the shorter
        except RowError:
            return []

    def push(self, token_id: int) -> bool:
        """Take the next token of the answer; whether it ends here."""
        try:
            self.rule.push(token_id)
            return self.rule.is_finished
        except RowError as error:
            self.error = error
        return False


def forced_drafts(
    constraints: Sequence[AnswerConstraint | None], most: Sequence[int]
) -> list[list[int]]:
    """What must follow in each request whatever is drafted, at most ``most[i]`` tokens."""
    pairs = zip(constraints, most, strict=True)
    return [[] if constraint is None else constraint.forced(limit) for constraint, limit in pairs]


def follow_constraints(
    drafts: Sequence[list[int]],
    constraints: Sequence[AnswerConstraint | None],
    forced: Sequence[list[int]],
) -> list[list[int]]:
    """Each request's drafts as far as its constraint allows them, or what is ``forced``."""
    return [
        ids if constraint is None else constraint.drafts(ids, must)
        for ids, constraint, must in zip(drafts, constraints, forced, strict=True)
    ]
