"""Splits the time of a step on a CPU by kernel family, by tracing Python calls."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from types import CodeType, FrameType

import deepinfer.kernels

_KERNELS = Path(deepinfer.kernels.__file__).parent
OTHER = "engine, torch"


@contextmanager
def python_parts(within: Callable[..., object]) -> Iterator[dict[str, float]]:
    """Seconds inside calls of the Python function ``within``, by the innermost folder of
    ``kernels/`` on the stack; complete at the end of the block.

    Only this thread is traced.  Tracing slows calls down: shares are more accurate than seconds.
    """
    parts: dict[str, float] = defaultdict(float)
    watch = _Watch(within.__code__, parts)
    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        yield parts
    finally:
        sys.setprofile(before)


class _Watch:
    """Attributes the time between trace events to the family that ran; None stands for code
    outside of ``within``, which is not counted."""

    def __init__(self, within: CodeType, parts: dict[str, float]) -> None:
        self._within = within
        self._parts = parts
        self._families: dict[CodeType, str | None] = {}
        self._stack: list[str | None] = []
        self._since = 0.0

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            outer = self._top()
            inner = self._inner(frame.f_code, outer)
            self._turn(outer, inner)
            self._stack.append(inner)
        elif event == "return" and self._stack:  # not of a frame that was entered before tracing
            self._turn(self._stack.pop(), self._top())

    def _top(self) -> str | None:
        return self._stack[-1] if self._stack else None

    def _turn(self, old: str | None, new: str | None) -> None:
        if old == new:
            return
        now = perf_counter()
        if old is not None:
            self._parts[old] += now - self._since
        self._since = now

    def _inner(self, code: CodeType, outer: str | None) -> str | None:
        """The family of a call: that of its file, else that of the caller."""
        if outer is None:
            return OTHER if code is self._within else None
        if code not in self._families:
            self._families[code] = _family(code.co_filename)
        return self._families[code] or outer


def _family(file: str) -> str | None:
    """The folder of ``kernels/`` that a file is in."""
    folder = Path(file).parent
    return folder.name if folder.parent == _KERNELS else None
