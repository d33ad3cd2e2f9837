"""When and how a run ends early: signals, a time limit, too many errors."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOPPED_EARLY = 75
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SOON_S, _LONG_S = 1e-3, 1e8  # a timer of 0 would be none, one of many years an error


class StopNow(BaseException):
    """Leave at once.  What is finished is in the journal already."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


class StopWaiting(BaseException):
    """Ends the wait for the next row, which may never come.  The switch says stop."""


class StopSwitch:
    """Says whether to take new rows.  ``exit_code`` is what the run returns because of it."""

    def __init__(self, time_limit: float | None = None) -> None:
        self.exit_code: int | None = None
        self._forced: int | None = None
        self._is_waiting = False
        self._deadline = None if time_limit is None else time.monotonic() + time_limit

    @property
    def is_set(self) -> bool:
        is_late = self._deadline is not None and time.monotonic() >= self._deadline
        if self.exit_code is None and is_late:
            self.exit_code = STOPPED_EARLY
        return self.exit_code is not None

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Inside, what sets the switch raises StopWaiting too."""
        self._is_waiting = True
        try:
            yield
        finally:
            self._is_waiting = False

    def force(self, exit_code: int) -> None:
        """From any thread: leave at once with ``exit_code``, as after SIGTERM."""
        self._forced = exit_code
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGTERM)  # also ends a wait in a system call

    @contextmanager
    def on_signals(
        self, say: Callable[[str], None], is_running: Callable[[], bool]
    ) -> Iterator[None]:
        """The first Ctrl-C and the end of the time set the switch; a second Ctrl-C, SIGTERM or
        SIGHUP raise StopNow.

        Where nothing is running yet, there is nothing to finish: the first one raises it too.
        What was ignored when the program began, as by nohup, stays ignored.
        """

        def handle(number: int, frame: FrameType | None) -> None:
            if self._forced is not None:
                raise StopNow(self._forced)
            if number == signal.SIGALRM:
                self.exit_code = self.exit_code or STOPPED_EARLY
            elif number == signal.SIGINT and self.exit_code is None and is_running():
                self.exit_code = 128 + number
                say("Finishing the rows that are running; Ctrl-C again leaves at once.")
            else:
                raise StopNow(128 + number)
            if self._is_waiting:
                raise StopWaiting

        numbers = [n for n in _SIGNALS if signal.getsignal(n) != signal.SIG_IGN]
        if self._deadline is not None:
            numbers.append(signal.SIGALRM)
        before = {number: signal.signal(number, handle) for number in numbers}
        timer = (0.0, 0.0)  # of whoever called this, such as a test
        if self._deadline is not None:
            left = max(self._deadline - time.monotonic(), _SOON_S)
            timer = signal.setitimer(signal.ITIMER_REAL, min(left, _LONG_S))
        try:
            yield
        finally:
            if self._deadline is not None:
                signal.setitimer(signal.ITIMER_REAL, *timer)
            for number, handler in before.items():
                signal.signal(number, handler)
