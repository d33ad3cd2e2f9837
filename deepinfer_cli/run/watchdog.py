"""Ends a run that makes no progress, such as with a hanging device or deadlocked threads."""

from __future__ import annotations

import faulthandler
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from deepinfer.errors import DeepInferError
from deepinfer_cli.stdio import complain, stderr_stream

from .background import every
from .console import duration

NO_PROGRESS = 6
_LOOKS = 20  # checks per limit
_GRACE_S = 10.0


class Watchdog:
    """If ``progress()`` does not change for ``limit_s``, prints the stacks of all threads on stderr
    and calls ``stop()`` to end the run.  If the run does not end within seconds, calls ``save()``
    and exits with code 6.

    ``progress`` is None while the run waits for something else (loading a model, a pipe), which
    does not count.
    """

    def __init__(
        self,
        limit_s: float,
        progress: Callable[[], object],
        *,
        stop: Callable[[], None],
        save: Callable[[], None],
    ) -> None:
        self._limit_s = limit_s
        self._progress = progress
        self._stop = stop
        self._save = save
        self._wait_s = min(1.0, limit_s / _LOOKS)
        self._last: object = None
        self._looked_at = time.monotonic()
        self._still_s = 0.0
        self._stopped_at: float | None = None

    @contextmanager
    def watch(self) -> Iterator[None]:
        with every(lambda: self._wait_s, self._look):
            yield

    def _look(self) -> None:
        now = time.monotonic()
        if self._stopped_at is not None:
            if now - self._stopped_at >= _GRACE_S:
                self._leave()
            return
        progress = self._progress()
        # If this process itself was suspended, nothing else could make progress, either.
        awake_s, self._looked_at = min(now - self._looked_at, 2 * self._wait_s), now
        if progress is None or progress != self._last:
            self._last, self._still_s = progress, 0.0
        elif (still_s := self._still_s + awake_s) < self._limit_s:
            self._still_s = still_s
        else:
            self._stopped_at = now
            complain(f"no progress for {duration(self._limit_s)} (--stall-limit); all stacks:")
            if (stderr := stderr_stream()) is not None:
                faulthandler.dump_traceback(stderr, all_threads=True)
            self._stop()

    def _leave(self) -> None:
        complain("the run does not respond; exiting, finished rows are kept")
        with suppress(OSError, DeepInferError):
            self._save()
        os._exit(NO_PROGRESS)
