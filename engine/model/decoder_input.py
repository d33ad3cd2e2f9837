"""``DecoderInput``: the tokens of a pass that go through the decoder layers, and their state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace

from torch import Tensor

from deepinfer.engine.execution.batch import ForwardBatch
from deepinfer.kernels.hyper_connection import HyperMix
from deepinfer.kernels.norm import NormedRows

from .global_kv import GlobalKV
from .residual import Entered
from .tokens import Tokens


@dataclass(frozen=True, slots=True, eq=False)
class DecoderInput:
    """T tokens, d width.

    batch      of these tokens
    main_rows  [T] i64, their indices in the whole pass
    lookback   [T, n-gram size] i64
    entered    the split layer's input, whose compressed entries are stored already
    taps       [T, d] bf16, by position in ``dspark_target_layer_ids``
    begun      tokens and global KV view of the whole pass if no token was dropped, else None;
               both follow from the batch
    """

    batch: ForwardBatch
    main_rows: Tensor
    lookback: Tensor
    entered: Entered
    taps: Mapping[int, Tensor]
    begun: tuple[Tokens, GlobalKV] | None = None

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors of the fields, always in the same order."""
        found: list[Tensor] = []
        self.map(lambda tensor: found.append(tensor) or tensor)  # type: ignore[func-returns-value]
        return found

    def map(self, change: Callable[[Tensor], Tensor]) -> DecoderInput:
        """The same with ``change`` applied to every tensor; rows of ``entered`` as bf16."""
        values = change(self.entered.rows.values)
        mix = HyperMix(*map(change, self.entered.mix))
        named = ((field.name, getattr(self.batch, field.name)) for field in fields(self.batch))
        tensors = {name: change(value) for name, value in named if isinstance(value, Tensor)}
        return DecoderInput(
            replace(self.batch, **tensors),  # type: ignore[arg-type]
            change(self.main_rows),
            change(self.lookback),
            Entered(change(self.entered.streams), mix, NormedRows(values, values)),
            {tap: change(hidden) for tap, hidden in self.taps.items()},
        )
