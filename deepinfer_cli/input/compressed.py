"""Plain, gzip and zstd byte streams, recognized by their first bytes.

A truncated compressed stream is an error, never a shorter file.
"""

from __future__ import annotations

import io
from typing import Any, BinaryIO, cast

_CHUNK = 1 << 17
# zstd returns the whole output for its input at once: 128 KiB for as little as four bytes.
_ZSTD_BYTES = 512


class TruncatedError(Exception):
    """The compressed data ends in the middle."""


class _ZstdReader(io.RawIOBase):
    """Decompresses zstd frames.  (The library's own reader ignores truncation.)"""

    def __init__(self, source: BinaryIO) -> None:
        import zstandard

        self._source = source
        self._make = zstandard.ZstdDecompressor(max_window_size=2**31).decompressobj
        self._frame: Any = None
        self._input = b""
        self._output = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._output:
            if not self._fill():
                return 0
        count = min(len(buffer), len(self._output))
        buffer[:count] = self._output[:count]
        self._output = self._output[count:]
        return count

    def _fill(self) -> bool:
        self._input = self._input or self._source.read(_ZSTD_BYTES)
        if not self._input:
            if self._frame is not None:
                raise TruncatedError("the zstd data is truncated")
            return False
        self._frame = self._frame or self._make()
        self._output = memoryview(self._frame.decompress(self._input))
        self._input = b""
        if self._frame.eof:
            self._input, self._frame = self._frame.unused_data, None
        return True


def open_plain(source: BinaryIO, magic: bytes) -> BinaryIO:
    """The decompressed bytes of ``source``, whose first bytes are ``magic``."""
    if magic.startswith(b"\x1f\x8b"):
        import gzip

        return cast(BinaryIO, gzip.GzipFile(fileobj=source, mode="rb"))
    if magic.startswith(b"\x28\xb5\x2f\xfd"):
        return cast(BinaryIO, io.BufferedReader(_ZstdReader(source), _CHUNK))
    return source


def read_errors() -> tuple[type[Exception], ...]:
    """Exceptions that reading a damaged or unreadable stream can raise."""
    import zlib

    import zstandard

    return (OSError, EOFError, zlib.error, zstandard.ZstdError, TruncatedError)
