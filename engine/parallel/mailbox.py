"""A rank's connection to the driver or to another rank, and what is said on it by either end."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from deepinfer.errors import DeepInferError, EngineError


class PeerLostError(EngineError):
    """Another rank went away in the middle of an exchange; its own failure says why."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The last message of a rank that could not go on."""

    error: DeepInferError


@dataclass(frozen=True, slots=True)
class Lost:
    """An expendable rank is gone; ``reason`` is a sentence about it."""

    rank: int
    reason: str


@dataclass(frozen=True, slots=True)
class Bye:
    """The driver has ended well: so does the rank that reads this."""


class Mailbox:
    """A rank's end of its connection to the driver, or to another rank.

    Messages are read by a thread, so the other side never waits for a rank that computes.  Without
    a driver a rank ends; ``is_open`` says whether another rank is still there.
    """

    def __init__(self, connection: Connection, *, is_driver: bool = True) -> None:
        self.is_open = True
        self._connection = connection
        self._is_driver = is_driver
        self._messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def send(self, message: Any) -> None:
        """Waits while the other side's system buffers are full; not for the other side itself."""
        try:
            self._connection.send(message)
        except OSError:
            if self._is_driver:
                raise
            self.is_open = False

    def take(self) -> Any:
        """The next message, None if there is none now."""
        try:
            return self._messages.get_nowait()
        except queue.Empty:
            return None

    def wait(self, timeout_s: float | None = None) -> Any:
        """The next message; None after ``timeout_s``."""
        try:
            return self._messages.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def _read(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                message = self._connection.recv()
                if isinstance(message, Bye):
                    os._exit(0)
                self._messages.put(message)
        self.is_open = False
        if self._is_driver:
            os._exit(1)


def make_link() -> tuple[Connection, Connection]:
    """Two connected ends, one for each of two ranks: give them to ``Mailbox`` there."""
    return multiprocessing.Pipe()
