"""Tensor-parallel ranks: the first one runs the engine, the others follow its passes.

Their caches have the same content, since latents, keys and rings are replicated; so whatever the
leader restores into a slot is sent to the others unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from deepinfer.engine.cache.kv_cache import KVCache
from deepinfer.engine.execution.batch import DraftOutput, ForwardOutput
from deepinfer.engine.model.model import Model

from .groups import Group
from .on_device import on_device

if TYPE_CHECKING:
    from deepinfer.engine.model.config import ModelConfig

_END = "end"
_REBALANCE = "rebalance"


class LeadingModel:
    """The model of the first rank: its followers make every call, too.

    ``control``: the tensor-parallel ranks.  Its cache is a ``LeadingCache``.
    """

    def __init__(self, model: Model, control: Group) -> None:
        self.model = model
        self.control = control

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    def forward(self, *arguments: Any) -> ForwardOutput:
        output: ForwardOutput = self._call("forward", *arguments)
        return output

    def seed_draft(self, *arguments: Any) -> None:
        self._call("seed_draft", *arguments)

    def draft(self, *arguments: Any) -> DraftOutput:
        *others, cache, sample, depth, keeps_logits = arguments

        def sample_for_all(*values: Tensor) -> Tensor:
            token_ids: Tensor = sample(*values)
            self.control.broadcast(on_device(token_ids, "cpu"))
            return token_ids

        self.control.broadcast(("draft", (depth, on_device(others, "cpu"))))
        call: Callable[..., DraftOutput] = self.model.draft
        return call(*others, cache.own, sample_for_all, depth, keeps_logits)

    def assist(self, first_layer: int = 0) -> None:
        self.control.broadcast(("assist", (first_layer,)))
        self.model.assist(first_layer)

    def assist_draft(self) -> None:
        self.control.broadcast(("assist_draft", ()))
        self.model.assist_draft()

    def rebalance(self) -> None:
        """Make the followers rebalance experts; the caller does so itself."""
        self.control.broadcast((_REBALANCE, ()))

    def end(self) -> None:
        """Release the followers."""
        self.control.broadcast((_END, ()))

    def _call(self, name: str, *arguments: Any) -> Any:
        *others, cache = arguments
        self.control.broadcast((name, on_device(others, "cpu")))
        return getattr(self.model, name)(*others, cache.own)


class LeadingCache:
    """The cache of the first rank: restored rings are sent to the followers, too."""

    def __init__(self, own: KVCache, control: Group) -> None:
        self.own = own
        self.control = control

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)

    def snapshot(self, slot: int) -> object:
        return self.own.snapshot(slot)

    def restore(self, slot: int, snapshot: Any) -> None:
        self.control.broadcast(("restore", (slot, on_device(snapshot, "cpu"))))
        self.own.restore(slot, snapshot)


@torch.inference_mode()
def follow(
    model: Model, cache: KVCache, control: Group, rebalance: Callable[[], None] = lambda: None
) -> None:
    """Repeat the leader's calls until it ends; call ``rebalance`` when it does so."""
    device = str(model.device)
    while True:
        message: Any = control.broadcast(None)
        name, arguments = message[0], on_device(message[1], device)
        if name == _END:
            return
        if name == _REBALANCE:
            rebalance()
        elif name == "restore":
            cache.restore(*arguments)
        elif name in ("assist", "assist_draft"):
            getattr(model, name)(*arguments)
        elif name == "draft":
            depth, others = arguments
            call: Callable[..., Any] = model.draft
            call(*others, cache, _received(control, device), depth, False)
        else:
            getattr(model, name)(*arguments, cache)


def _received(control: Group, device: str) -> Callable[..., Tensor]:
    """A sampler that returns the tokens that the leader drew."""

    def sample(*values: Tensor) -> Tensor:
        token_ids: Tensor = on_device(control.broadcast(None), device)
        return token_ids

    return sample
