"""Expert-parallel ranks run every forward pass together, whatever each of them has to do.

Before a pass each rank says what it wants to do next: draft, run a forward pass, or rest.  All do
the first of these that any rank wants; a rank that wanted something else takes part only with its
experts.  So each rank can have its own scheduler and its own rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Protocol

import torch

from deepinfer.engine.execution.batch import DraftOutput, ForwardOutput
from deepinfer.engine.execution.runner import Runner
from deepinfer.engine.execution.turns import ALONE, Turn

from .groups import Group

if TYPE_CHECKING:
    from deepinfer.engine.model.config import ModelConfig


class Wish(IntEnum):
    """What a rank wants to do next, by priority."""

    DRAFT = 0
    FORWARD = 1
    REST = 2
    DONE = 3


class AssistingRunner(Runner, Protocol):
    """A model that can take part in other ranks' passes with its experts."""

    def assist(self, first_layer: int = 0) -> None: ...

    def assist_draft(self) -> None: ...


class LockstepModel:
    """A model whose passes are run by all ranks of ``control`` together.

    ``before_pass`` is called by all ranks at once, with the number of passes so far and the maximum
    number of tokens of any rank, and returns what this means for graphs.
    Every rank must always end up in a pass, in ``rest`` or in ``finish``: the others wait for it.
    """

    def __init__(
        self,
        model: AssistingRunner,
        control: Group,
        before_pass: Callable[[int, int], Turn] = lambda number, most_tokens: ALONE,
    ) -> None:
        self.model = model
        self.control = control
        self._before_pass = before_pass
        self._num_passes = 0
        self._turn: Turn | None = None

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    def forward(self, *arguments: Any) -> ForwardOutput:
        with self.turn(len(arguments[0].token_ids)):
            return self.model.forward(*arguments)

    def seed_draft(self, *arguments: Any) -> None:
        self.model.seed_draft(*arguments)

    def draft(self, *arguments: Any) -> DraftOutput:
        with self.turn(len(arguments[0]) * self.config.dspark_block_size, is_draft=True):
            return self.model.draft(*arguments)

    @contextmanager
    def turn(self, num_tokens: int, *, is_draft: bool = False) -> Iterator[Turn]:
        """As in ``TakesTurns``: take part in other passes until all ranks run this one."""
        if self._turn is not None:  # the pass itself, within its turn
            yield self._turn
            return
        wish = Wish.DRAFT if is_draft else Wish.FORWARD
        while True:
            granted, turn = self._agree(wish, num_tokens)
            if granted is wish:
                break
            self._help(granted)
        self._turn = turn
        try:
            yield turn
        finally:
            self._turn = None

    def rest(self) -> bool:
        """Take part in one pass of the others; False if no rank wants one."""
        return self._help(self._agree(Wish.REST)[0])

    def finish(self) -> None:
        """Take part in passes until all ranks have called this."""
        while (wish := self._agree(Wish.DONE)[0]) is not Wish.DONE:
            self._help(wish)

    @torch.inference_mode()
    def _help(self, wish: Wish) -> bool:
        if wish is Wish.DRAFT:
            self.model.assist_draft()
        elif wish is Wish.FORWARD:
            self.model.assist()
        return wish in (Wish.DRAFT, Wish.FORWARD)

    def _agree(self, wish: Wish, num_tokens: int = 0) -> tuple[Wish, Turn]:
        wishes = self.control.all_gather(torch.tensor([wish, num_tokens]))
        granted, turn = Wish(int(wishes[:, 0].min())), ALONE
        if granted in (Wish.DRAFT, Wish.FORWARD):
            most_tokens = int(wishes[wishes[:, 0] == granted, 1].max())
            with torch.inference_mode():
                turn = self._before_pass(self._num_passes, most_tokens)
            self._num_passes += 1
        return granted, turn
