"""Ranks that share experts make every pass together, whatever each has to do.

Before a pass each rank says what it wants next, and all do what most of the work is behind: drafts
before passes before rest.  A rank that wanted something else, or nothing, only helps with its
experts.  So ranks need not agree on anything else: each has its own scheduler and its own rows.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Protocol

import torch

from deepinfer.engine.execution.batch import DraftOutput, ForwardOutput
from deepinfer.engine.execution.runner import Runner

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
    tokens that any rank brings.
    Between passes every rank must be in a pass, in ``rest`` or in ``finish``.
    """

    def __init__(
        self,
        model: AssistingRunner,
        control: Group,
        before_pass: Callable[[int, int], None] = lambda number, most_tokens: None,
    ) -> None:
        self.model = model
        self.control = control
        self._before_pass = before_pass
        self._num_passes = 0

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    def forward(self, *arguments: Any) -> ForwardOutput:
        self._take_turn(Wish.FORWARD, len(arguments[0].token_ids))
        return self.model.forward(*arguments)

    def seed_draft(self, *arguments: Any) -> None:
        self.model.seed_draft(*arguments)

    def draft(self, *arguments: Any) -> DraftOutput:
        self._take_turn(Wish.DRAFT, len(arguments[0]) * self.config.dspark_block_size)
        return self.model.draft(*arguments)

    def rest(self) -> bool:
        """Help with one pass of the others; False if nobody wants one."""
        return self._help(self._agree(Wish.REST))

    def finish(self) -> None:
        """Help until all ranks are here."""
        while (wish := self._agree(Wish.DONE)) is not Wish.DONE:
            self._help(wish)

    def _take_turn(self, wish: Wish, num_tokens: int) -> None:
        while (granted := self._agree(wish, num_tokens)) is not wish:
            self._help(granted)

    @torch.inference_mode()
    def _help(self, wish: Wish) -> bool:
        if wish is Wish.DRAFT:
            self.model.assist_draft()
        elif wish is Wish.FORWARD:
            self.model.assist()
        return wish in (Wish.DRAFT, Wish.FORWARD)

    def _agree(self, wish: Wish, num_tokens: int = 0) -> Wish:
        wishes = self.control.all_gather(torch.tensor([wish, num_tokens]))
        granted = Wish(int(wishes[:, 0].min()))
        if granted in (Wish.DRAFT, Wish.FORWARD):
            most_tokens = int(wishes[wishes[:, 0] == granted, 1].max())
            with torch.inference_mode():
                self._before_pass(self._num_passes, most_tokens)
            self._num_passes += 1
        return granted
