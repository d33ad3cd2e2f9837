"""Early ends of a run: signals and the time limit."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOPPED_EARLY = 75
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SOON_S, _LONG_S = 1e-3, 1e8  # 0 would disable the timer, many years would be an error


class StopNow(BaseException):
    """Exit at once.  Finished rows are in the journal already."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


class StopWaiting(BaseException):
    """Interrupts the wait for the next row after the switch was set."""


class StopSwitch:
    """Tells the run to take no new rows.  ``exit_code``: the resulting exit code of the run."""

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
        """A block in which setting the switch also raises StopWaiting."""
        self._is_waiting = True
        try:
            yield
        finally:
            self._is_waiting = False

    def force(self, exit_code: int) -> None:
        """Exit at once with ``exit_code``, as after SIGTERM.  May be called from any thread."""
        self._forced = exit_code
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGTERM)  # also interrupts system calls

    @contextmanager
    def on_signals(
        self, say: Callable[[str], None], is_running: Callable[[], bool]
    ) -> Iterator[None]:
        """The first Ctrl-C and the time limit set the switch; a second Ctrl-C, SIGTERM and SIGHUP
        raise StopNow.

        If no row is running yet, there is nothing to finish, and the first Ctrl-C raises it, too.
        Signals that were ignored when the program started, as with nohup, stay ignored.
        """

        def handle(number: int, frame: FrameType | None) -> None:
            if self._forced is not None:
                raise StopNow(self._forced)
            if number == signal.SIGALRM:
                self.exit_code = self.exit_code or STOPPED_EARLY
            elif number == signal.SIGINT and self.exit_code is None and is_running():
                self.exit_code = 128 + number
                say("Finishing the rows in progress; Ctrl-C again exits at once.")
            else:
                raise StopNow(128 + number)
            if self._is_waiting:
                raise StopWaiting

        numbers = [n for n in _SIGNALS if signal.getsignal(n) != signal.SIG_IGN]
        if self._deadline is not None:
            numbers.append(signal.SIGALRM)
        before = {number: signal.signal(number, handle) for number in numbers}
        timer = (0.0, 0.0)  # a timer of the caller, such as a test
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
