"""Passes that several ranks make together: each is a turn, agreed upon before it begins."""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class Turn:
    """What ranks agreed upon.  ``key``: what a graph of the pass depends on beside its shapes; None
    if it cannot be one.  ``epoch`` changes when weights moved: no graph made before is right then.
    """

    key: Hashable
    epoch: int = 0


ALONE = Turn(0)


@runtime_checkable
class TakesTurns(Protocol):
    """A model whose passes are made by several ranks at a time."""

    def turn(self, num_tokens: int, *, is_draft: bool = False) -> AbstractContextManager[Turn]:
        """Wait until this pass is the one that all make; within it, the pass does not ask again."""
        ...


def turn_of(
    model: object, num_tokens: int, *, is_draft: bool = False
) -> AbstractContextManager[Turn]:
    """The turn for a pass of any model; one that is alone has it at once."""
    if isinstance(model, TakesTurns):
        return model.turn(num_tokens, is_draft=is_draft)
    return nullcontext(ALONE)
