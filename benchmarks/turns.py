"""Runs that alternate step by step in one process, so that other load affects all equally."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from deepinfer.engine.engine import LLMEngine

T = TypeVar("T")


@dataclass
class Seconds:
    """Totals of all steps.  cpu: CPU time of their thread; wall: wall-clock time."""

    cpu: float = 0.0
    wall: float = 0.0


@dataclass
class Turns:
    """The run that has used the least CPU time runs the next step."""

    used: dict[str, Seconds] = field(default_factory=dict)
    _change: threading.Condition = field(default_factory=threading.Condition)

    def run(self, work: dict[str, tuple[LLMEngine, Callable[[], None]]]) -> None:
        """Do all the work, each in its own thread; only one engine steps at a time."""
        self.used = {name: Seconds() for name in work}
        running = set(work)

        def finish(name: str, act: Callable[[], None]) -> None:
            try:
                act()
            finally:
                with self._change:
                    running.discard(name)
                    self._change.notify_all()

        for name, (engine, _) in work.items():
            engine.step = self._in_turn(name, engine.step, running)  # type: ignore[method-assign]
        threads = [
            threading.Thread(target=finish, args=(name, act)) for name, (_, act) in work.items()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _in_turn(self, name: str, step: Callable[[], T], running: set[str]) -> Callable[[], T]:
        def step_in_turn() -> T:
            with self._change:
                self._change.wait_for(
                    lambda: min(running, key=lambda other: self.used[other].cpu) == name
                )
                cpu, wall = time.thread_time(), time.perf_counter()
                result = step()
                self.used[name].cpu += time.thread_time() - cpu
                self.used[name].wall += time.perf_counter() - wall
                self._change.notify_all()
                return result

        return step_in_turn
