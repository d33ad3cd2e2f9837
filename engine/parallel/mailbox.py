"""A rank's connection to the driver or to another rank, and the messages of either end."""

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
    """Another rank was lost in the middle of an exchange; its own failure is the cause."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The last message of a rank that failed."""

    error: DeepInferError


@dataclass(frozen=True, slots=True)
class Lost:
    """An expendable rank was lost; ``reason`` is a sentence about it."""

    rank: int
    reason: str


@dataclass(frozen=True, slots=True)
class Bye:
    """The driver has ended normally, and so does the rank that receives this."""


class Mailbox:
    """A rank's end of its connection to the driver, or to another rank.

    A thread receives messages, so the other side never waits for a rank that is computing.  A rank
    that loses its driver exits; ``is_open`` says whether the other end still exists.
    """

    def __init__(self, connection: Connection, *, is_driver: bool = True) -> None:
        self.is_open = True
        self._connection = connection
        self._is_driver = is_driver
        self._messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def send(self, message: Any) -> None:
        """Send a message; blocks only while the buffers of the connection are full."""
        try:
            self._connection.send(message)
        except OSError:
            if self._is_driver:
                raise
            self.is_open = False

    def take(self) -> Any:
        """The next message, None if there is none yet."""
        try:
            return self._messages.get_nowait()
        except queue.Empty:
            return None

    def wait(self, timeout_s: float | None = None) -> Any:
        """Wait for the next message; None after ``timeout_s``."""
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
    """Two connected ends for two ranks, each of which makes a ``Mailbox`` of its end."""
    return multiprocessing.Pipe()
