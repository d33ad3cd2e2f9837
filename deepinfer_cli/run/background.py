"""Periodic actions in a background thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def every(wait_s: Callable[[], float], action: Callable[[], None]) -> Iterator[None]:
    """Call ``action`` after each ``wait_s()`` seconds until the block ends."""
    done = threading.Event()

    def repeat() -> None:
        while not done.wait(wait_s()):
            action()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
