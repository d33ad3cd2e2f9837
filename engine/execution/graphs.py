"""CUDA graphs of functions whose tensors never move: what was launched once is replayed."""

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
    """One graph for each key, all in one memory pool; without ``captures`` functions just run, as
    they do on a CPU.

    The first call of a key runs the function, which also compiles its kernels; the second captures
    it, unless there is no memory for that.  A function must do the same work on the same addresses
    whenever its key is the same, keep what it returns valid until the next call, and let the host
    wait for nothing.
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
        """The function's result; tensors in it are overwritten by the next call of the key.
        ``turn`` says what other ranks add to the key, and when all graphs are out of date."""
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
                # The plain run had room; a graph, which keeps its memory, has not.
                self._plain.add(key)
                return function()
        captured = self._graphs[key]
        captured.graph.replay()
        result: Result = captured.result
        return result

    def _capture(self, function: Callable[[], Any]) -> _Graph:
        graph = torch.cuda.CUDAGraph()
        # Other threads may go on using the device: they read rows and never touch these tensors.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            result = function()
        self._pool = graph.pool()
        return _Graph(graph, result)
