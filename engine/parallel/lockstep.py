"""Ranks that share experts make every pass together, whatever each has to do.

Before a pass each rank says what it wants next, and all do what most of the work is behind: drafts
before passes before rest.  A rank that wanted something else, or nothing, only helps with its
experts.  So ranks need not agree on anything else: each has its own scheduler and its own rows.
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
    """In the order in which wishes are granted."""

    DRAFT = 0
    FORWARD = 1
    REST = 2
    DONE = 3


class AssistingRunner(Runner, Protocol):
    """A model that can help other ranks' tokens through its experts."""

    def assist(self, first_layer: int = 0) -> None: ...

    def assist_draft(self) -> None: ...


class LockstepModel:
    """A model whose passes are made by all ranks of ``control`` at a time.

    ``before_pass`` is called by all ranks at once, with the number of passes so far and the most
    tokens that any rank brings, and says what it means for graphs.
    Between passes every rank must be in a pass, in ``rest`` or in ``finish``.
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
        """As in ``TakesTurns``: help the others until they make this pass, too."""
        if self._turn is not None:  # the pass itself, whose turn was taken around it
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
        """Help with one pass of the others; False if nobody wants one."""
        return self._help(self._agree(Wish.REST)[0])

    def finish(self) -> None:
        """Help until all ranks are here."""
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
