"""Constraints whose meaning is a line of Python."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from fake_model import FakeConfig

from deepinfer.errors import RowError

EOS = FakeConfig().eos_token_id


class Rising:
    """Each token is larger than the one before by at most ``step``; the end is allowed from the
    third token on, and nothing else once 40 is reached.  ``limit``: tokens until it gives up."""

    def __init__(self, step: int, limit: int = 100) -> None:
        self.step = step
        self.limit = limit
        self.tokens: list[int] = []

    def allowed(self) -> set[int]:
        if len(self.tokens) >= self.limit:
            raise RowError("constraint_too_complex", "too long for me")
        last = self.tokens[-1] if self.tokens else 5
        if last == EOS:
            return set()
        following = set(range(last + 1, min(last + self.step, 40) + 1))
        return following | ({EOS} if len(self.tokens) >= 3 or not following else set())

    @property
    def is_finished(self) -> bool:
        return bool(self.tokens) and self.tokens[-1] in (EOS, 40)

    def num_allowed(self, draft_token_ids: Sequence[int]) -> int:
        return len(self._walk(draft_token_ids)) - 1

    def forced_tokens(self) -> list[int]:
        forced = 0
        while len(allowed := self._walk(range(0))[0]) == 1 and EOS not in allowed:
            self.tokens += allowed
            forced += 1
        found = self.tokens[len(self.tokens) - forced :]
        del self.tokens[len(self.tokens) - forced :]
        return found

    @staticmethod
    def fill_masks(rules, drafts, out: np.ndarray) -> list[RowError | None]:
        out[:] = 0
        errors: list[RowError | None] = []
        first = 0
        for rule, ids in zip(rules, drafts, strict=True):
            try:
                sets, error = rule._walk(ids), None
            except RowError as reason:
                sets, error = [], reason
            errors.append(error)
            for row, allowed in zip(out[first:], sets, strict=False):
                for token_id in allowed:
                    row[token_id // 32] |= np.uint32(1 << token_id % 32)
            first += 1 + len(ids)
        return errors

    def push(self, token_id: int) -> None:
        assert token_id in self.allowed(), "the engine took a token that is not allowed"
        self.tokens.append(token_id)

    def _walk(self, draft_token_ids: Sequence[int]) -> list[set[int]]:
        """What is allowed here and after each draft, up to one that is not allowed."""
        before, sets = len(self.tokens), []
        try:
            for token_id in draft_token_ids:
                sets.append(self.allowed())
                if token_id not in sets[-1]:
                    return sets
                self.tokens.append(token_id)
            return [*sets, self.allowed()]
        finally:
            del self.tokens[before:]


class Falling(Rising):
    """Another class of constraints: each token is smaller than the one before."""

    def allowed(self) -> set[int]:
        return set(range(2, (self.tokens or [9])[-1]))
