"""Forward passes that ranks run in lockstep: each is a turn, agreed upon before it starts."""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class Turn:
    """What the ranks agreed on.  ``key``: what a CUDA graph of the pass depends on besides its
    shapes; None if it cannot be captured.  ``epoch`` changes when weights move, which invalidates
    all earlier graphs.
    """

    key: Hashable
    epoch: int = 0


ALONE = Turn(0)


@runtime_checkable
class TakesTurns(Protocol):
    """A model whose forward passes are run by several ranks in lockstep."""

    def turn(self, num_tokens: int, *, is_draft: bool = False) -> AbstractContextManager[Turn]:
        """Wait until all ranks agree to run this pass; within the context it is not asked again."""
        ...


def turn_of(
    model: object, num_tokens: int, *, is_draft: bool = False
) -> AbstractContextManager[Turn]:
    """The turn of a pass; immediate for a model on a single rank."""
    if isinstance(model, TakesTurns):
        return model.turn(num_tokens, is_draft=is_draft)
    return nullcontext(ALONE)
