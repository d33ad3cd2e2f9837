"""``InputMeter``: times the reading of rows, and computes a digest of all of them."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator

from .rows import InputRow


class InputMeter:
    """Wraps the rows of a reader.  ``read_s``: seconds spent in the reader so far."""

    def __init__(self, rows: Iterator[InputRow]) -> None:
        self.read_s = 0.0
        self._rows = rows
        self._digest = hashlib.blake2b(digest_size=8)

    def __iter__(self) -> Iterator[InputRow]:
        while True:
            began = time.perf_counter()
            row = next(self._rows, None)
            self.read_s += time.perf_counter() - began
            if row is None:
                return
            self._digest.update(len(row.raw).to_bytes(8, "little") + row.raw)
            yield row

    def digest(self) -> str:
        """16 hex digits over the bytes of every row so far, in order."""
        return self._digest.hexdigest()
