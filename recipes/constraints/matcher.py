"""``ConstraintMatcher``: the state of one answer's constraint, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from deepinfer.errors import RowError

from .masks import ALL_BUT_END, BY_GRAMMAR, Mask, MaskPlan, fill_masks
from .vocabulary import ConstraintVocabulary


class ConstraintMatcher:
    """Determines which tokens may come next.  Not thread-safe.

    During the reasoning every token but the end token is allowed; after it, the grammar decides.
    The end token is allowed only where the grammar is complete.  Masks depend only on the tokens
    pushed so far, so they are the same with and without speculation.
    """

    def __init__(
        self, matcher: Any, vocabulary: ConstraintVocabulary, *, start_after: int | None
    ) -> None:
        self._matcher = matcher
        self.vocabulary = vocabulary
        self._start_after = start_after
        self._num_before = 0  # tokens up to and including the one that ends the reasoning
        self._num_inside = 0  # tokens the grammar has consumed
        self._is_waiting = start_after is not None
        self._is_ended = False

    @property
    def eos_id(self) -> int:
        """The token that ends an answer."""
        return self.vocabulary.eos_id

    @property
    def num_tokens(self) -> int:
        """Number of tokens pushed and not rolled back."""
        return self._num_before + self._num_inside + self._is_ended

    @property
    def is_accepting(self) -> bool:
        """Whether the answer so far is complete: the end token is allowed, or was pushed."""
        return not self._is_waiting and (self._is_ended or bool(self._matcher.is_accepting()))

    @property
    def is_finished(self) -> bool:
        """Whether the end token was pushed, or no other token is allowed."""
        if self._is_waiting:
            return False
        return self._is_ended or (bool(self._matcher.is_stopped()) and not self._failed())

    @staticmethod
    def fill_masks(
        matchers: Sequence[ConstraintMatcher], drafts: Sequence[Sequence[int]], out: Mask
    ) -> list[RowError | None]:
        """See ``masks.fill_masks``."""
        return fill_masks(matchers, drafts, out)

    def mask(self) -> Mask:
        """One bit per token, least significant first: uint32 [ceil(vocab_size / 32)].

        Where the grammar forces a text, only the first token of its canonical tokenization is
        allowed.
        Raises: RowError ``constraint_too_complex`` if the grammar exceeds a limit here.
        """
        out = np.empty((1, self.vocabulary.num_mask_words), dtype=np.uint32)
        [error] = fill_masks([self], [()], out)
        if error is not None:
            raise error
        return out.reshape(-1)

    def plan(self, draft_token_ids: Sequence[int]) -> MaskPlan:
        """How to compute the masks here and after each draft, up to one that is not allowed."""
        rows = self._walk(draft_token_ids)
        self.rollback(len(rows) - 1)
        return MaskPlan(self._matcher, rows, draft_token_ids)

    def num_allowed(self, draft_token_ids: Sequence[int]) -> int:
        """Length of the longest prefix of the drafts that is allowed here."""
        num_allowed = len(self._walk(draft_token_ids)) - 1
        self.rollback(num_allowed)
        return num_allowed

    def forced_tokens(self) -> list[int]:
        """The tokens that must follow, each the only one allowed.  Never the end token."""
        forced: list[int] = []
        while not (self._is_waiting or self._is_ended):
            token_id = self._forced_token()
            if token_id is None:
                break
            self.push(token_id)
            forced.append(token_id)
        self.rollback(len(forced))
        return forced

    def push(self, token_id: int) -> None:
        """Advance by one token.

        Raises: ValueError for a token that is not allowed; the state is then unchanged.
        """
        if self._is_ended:
            raise ValueError(f"token {token_id} after the end of the answer")
        if token_id == self.vocabulary.eos_id:
            if not self.is_accepting:
                raise ValueError("the answer ends before its constraint is met")
            self._is_ended = True
        elif self._is_waiting:
            self._num_before += 1
            self._is_waiting = token_id != self._start_after
        elif self._consume(token_id):
            self._raise_if_failed()
        else:
            raise ValueError(f"token {token_id} is not allowed by the constraint")

    def rollback(self, num_tokens: int) -> None:
        """Undo the last ``num_tokens`` tokens."""
        if not 0 <= num_tokens <= self.num_tokens:
            raise ValueError(f"cannot roll back {num_tokens} of {self.num_tokens} tokens")
        if num_tokens and self._is_ended:
            self._is_ended = False
            num_tokens -= 1
        inside = min(num_tokens, self._num_inside)
        if inside:
            self._matcher.rollback(inside)
            self._num_inside -= inside
        if num_tokens > inside:
            self._num_before -= num_tokens - inside
            self._is_waiting = True

    def _walk(self, token_ids: Sequence[int]) -> list[int]:
        """``MaskPlan.rows`` here and after each token, up to one that is not allowed; the allowed
        tokens are pushed."""
        rows = [self._row()]
        for token_id in token_ids:
            if not self._advance(rows[-1], token_id):
                break
            rows.append(self._row())
        return rows

    def _advance(self, row: int, token_id: int) -> bool:
        """Push a token if the mask here, of kind ``row``, allows it; returns whether it does."""
        if self._is_ended or (row >= 0 and token_id != row):
            return False
        if token_id == self.vocabulary.eos_id:
            is_allowed = self.is_accepting
        elif not self._is_waiting:
            return self._consume(token_id)
        else:
            is_allowed = True
        if is_allowed:
            self.push(token_id)
        return is_allowed

    def _consume(self, token_id: int) -> bool:
        """Push a token to the grammar; returns whether it is accepted."""
        if token_id >= self.vocabulary.num_tokens or self._matcher.is_stopped():
            return False
        if self._matcher.try_consume_tokens([token_id]) != 1:
            self._raise_if_failed()
            return False
        self._num_inside += 1
        return True

    def _forced_token(self) -> int | None:
        if self._matcher.is_stopped():
            return None
        forced = self._matcher.compute_ff_tokens()
        self._raise_if_failed()
        return forced[0] if forced else None

    def _row(self) -> int:
        """The entry of ``MaskPlan.rows`` for the current position."""
        if self._is_waiting:
            return ALL_BUT_END
        if self._is_ended:
            return self.vocabulary.eos_id
        forced = self._forced_token()
        return BY_GRAMMAR if forced is None else forced

    def _failed(self) -> bool:
        return bool(self._matcher.is_error())

    def _raise_if_failed(self) -> None:
        if self._failed():
            raise self.failure()

    def failure(self) -> RowError:
        """The error of a grammar that failed."""
        return RowError(
            "constraint_too_complex",
            f"the constraint failed after {self.num_tokens} tokens: "
            f"{self._matcher.get_error()[:300]}",
        )
