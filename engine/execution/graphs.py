"""CUDA graphs of functions whose tensors keep their addresses."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from .turns import ALONE, Turn

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class _Graph:
    graph: torch.cuda.CUDAGraph
    result: Any


class GraphCache:
    """One graph per key, all in one memory pool; without ``captures``, and on a CPU, functions just
    run.

    The first call with a key runs the function, which also compiles its kernels; the second one
    captures it, unless there is not enough memory.  With the same key a function must do the same
    work on the same addresses, keep its results valid until the next call, and never synchronize.
    """

    def __init__(self, device: torch.device | str, *, captures: bool = True) -> None:
        self.is_enabled = captures and torch.device(device).type == "cuda"
        self._pool: Any = None
        self._seen: set[Hashable] = set()
        self._plain: set[Hashable] = set()
        self._graphs: dict[Hashable, _Graph] = {}
        self._epoch = 0

    @property
    def num_captured(self) -> int:
        return len(self._graphs)

    def run(self, key: Hashable, function: Callable[[], Result], turn: Turn = ALONE) -> Result:
        """The function's result, whose tensors are overwritten by the next call with the same key.
        ``turn``: what other ranks add to the key, and an epoch that invalidates all graphs."""
        if not self.is_enabled or turn.key is None:
            return function()
        if turn.epoch != self._epoch:
            self._epoch = turn.epoch
            self._graphs.clear()
            self._seen.clear()
        key = (key, turn.key)
        if key not in self._seen:
            self._seen.add(key)
            return function()
        if key in self._plain:
            return function()
        if key not in self._graphs:
            try:
                self._graphs[key] = self._capture(function)
            except torch.OutOfMemoryError:
                # There was room to run it, but not for a graph, which keeps its memory.
                self._plain.add(key)
                return function()
        captured = self._graphs[key]
        captured.graph.replay()
        result: Result = captured.result
        return result

    def _capture(self, function: Callable[[], Any]) -> _Graph:
        graph = torch.cuda.CUDAGraph()
        # Other threads may use the device meanwhile: they never touch these tensors.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            result = function()
        self._pool = graph.pool()
        return _Graph(graph, result)
