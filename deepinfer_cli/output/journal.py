"""The durable log of finished rows.

One line per finished row, in order of completion: checksum, row index, digest of the input row,
data for the report, and the row of the result or errors file, separated by tabs.  JSON has no raw
newlines, so a damaged line does not affect the next one.  An index of fixed-size entries by row is
kept on disk, not in memory; it is rebuilt from the log and never trusted.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO

from deepinfer.errors import DeepInferError

_ENTRY = struct.Struct("<QI4x8s")  # offset of the log line plus one, its length, digest
_ENTRIES_READ = 4_096
_SYNC_SECONDS = 1.0
_SYNC_RECORDS = 1_000


@dataclass(frozen=True, slots=True)
class Record:
    """A finished row.  ``payload`` is a line of the result file or of the errors file."""

    index: int
    digest: bytes
    is_error: bool
    facts: Mapping[str, Any]
    payload: bytes


def digest(raw: bytes) -> bytes:
    """An 8-byte digest that identifies the content of an input row."""
    return hashlib.blake2b(raw, digest_size=8).digest()


class JournalError(DeepInferError):
    """A record cannot be read back as it was written."""


class JournalGoneError(JournalError):
    """The log was deleted during the run; its rows are lost."""


class Journal:
    """The log in ``folder``, new or left by an earlier run.  With ``is_kept`` False, a new unnamed
    file on that disk, which disappears with this object."""

    def __init__(self, folder: Path, *, is_kept: bool = True) -> None:
        self._folder = folder if is_kept else None
        if is_kept:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            self._log = os.open(folder / "journal", flags, 0o644)
            self._index = os.open(folder / "index", flags | os.O_TRUNC, 0o644)
        else:
            with TemporaryFile(dir=folder) as log, TemporaryFile(dir=folder) as index:
                self._log, self._index = os.dup(log.fileno()), os.dup(index.fileno())
        self._end = os.fstat(self._log).st_size
        self._num_rows = 0
        self._unsynced = 0
        self._synced_at = time.monotonic()

    def recover(self) -> Iterator[Record]:
        """Every valid record of the log, oldest first; this also fills the index.

        A line truncated by a crash is removed; a damaged one is skipped, so that its row is
        answered again.  Of several records of a row the last one counts.
        """
        end = 0
        with open(os.dup(self._log), "rb", buffering=1 << 20) as log:
            log.seek(0)
            for offset, line in _whole_lines(log):
                record = _parse(line)
                if record is not None:
                    self._enter(record, offset, len(line))
                    yield record
                end = offset + len(line)
        os.ftruncate(self._log, end)
        self._end = end

    @property
    def num_bytes(self) -> int:
        return self._end

    @property
    def num_rows(self) -> int:
        """Number of finished rows, including recovered ones."""
        return self._num_rows

    def append(self, record: Record) -> None:
        """Write ``record`` so that it survives a crash of the process, and within seconds also one
        of the machine.

        Raises: OSError, such as for a full disk; then nothing of the record is left in the log.
        """
        line = _format(record)
        self._write(line)
        offset, self._end = self._end, self._end + len(line)
        self._enter(record, offset, len(line))
        self._unsynced += 1
        due = time.monotonic() - self._synced_at >= _SYNC_SECONDS
        if due or self._unsynced >= _SYNC_RECORDS:
            self.sync()

    def sync(self) -> None:
        """Sync all records to the disk.  Raises: OSError, JournalGoneError."""
        os.fsync(self._log)
        if self._folder is not None and os.fstat(self._log).st_nlink == 0:
            raise JournalGoneError(
                f"{self._folder} was deleted while this run was writing to it: its "
                f"{self._num_rows:,} finished rows are lost; run the command again"
            )
        self._unsynced = 0
        self._synced_at = time.monotonic()

    def finished(self, index: int) -> bytes | None:
        """The input digest of finished row ``index``, None if it is not finished."""
        entry = os.pread(self._index, _ENTRY.size, index * _ENTRY.size)
        if len(entry) < _ENTRY.size:
            return None
        offset, _, row_digest = _ENTRY.unpack(entry)
        return row_digest if offset else None

    def record(self, index: int) -> Record | None:
        """The last record of row ``index``; None if it is not finished.  Raises: JournalError."""
        return self._record(os.pread(self._index, _ENTRY.size, index * _ENTRY.size))

    def in_input_order(self, end: int) -> Iterator[Record]:
        """The finished rows before row ``end``, in input order and bounded memory.

        Raises: JournalError.
        """
        for start in range(0, end, _ENTRIES_READ):
            count = min(_ENTRIES_READ, end - start)
            block = os.pread(self._index, count * _ENTRY.size, start * _ENTRY.size)
            for at in range(0, len(block), _ENTRY.size):
                record = self._record(block[at : at + _ENTRY.size])
                if record is not None:
                    yield record

    def in_completion_order(self, end: int | None = None) -> Iterator[Record]:
        """The same records in order of completion; all of them without ``end``."""
        with open(os.dup(self._log), "rb", buffering=1 << 20) as log:
            log.seek(0)
            for offset, line in _whole_lines(log):
                record = _parse(line)
                if record is not None and (end is None or record.index < end):
                    entry = os.pread(self._index, _ENTRY.size, record.index * _ENTRY.size)
                    if _ENTRY.unpack(entry)[0] == offset + 1:
                        yield record

    def close(self) -> None:
        for descriptor in (self._log, self._index):
            os.close(descriptor)

    def forget(self, index: int) -> None:
        """Treat row ``index`` as not finished until it is appended again."""
        self._num_rows -= self.finished(index) is not None
        os.pwrite(self._index, bytes(_ENTRY.size), index * _ENTRY.size)

    def _write(self, line: bytes) -> None:
        written = 0
        try:
            while written < len(line):
                written += os.pwrite(self._log, line[written:], self._end + written)
        except OSError:
            os.ftruncate(self._log, self._end)
            raise

    def _enter(self, record: Record, offset: int, length: int) -> None:
        self._num_rows += self.finished(record.index) is None
        entry = _ENTRY.pack(offset + 1, length, record.digest)
        os.pwrite(self._index, entry, record.index * _ENTRY.size)

    def _record(self, entry: bytes) -> Record | None:
        if len(entry) < _ENTRY.size:
            return None
        offset, length, _ = _ENTRY.unpack(entry)
        if offset == 0:
            return None
        record = _parse(os.pread(self._log, length, offset - 1))
        if record is None:
            raise JournalError(
                f"the record at byte {offset - 1:,} of the journal is damaged; "
                "run the same command again to answer that row once more"
            )
        return record


def holds_rows(folder: Path) -> bool:
    """Whether there is a log with at least one row in ``folder``."""
    try:
        with (folder / "journal").open("rb", buffering=1 << 20) as log:
            return any(_parse(line) is not None for _, line in _whole_lines(log))
    except FileNotFoundError:
        return False


def count_rows(folder: Path) -> tuple[int, int]:
    """Number of rows in the log in ``folder``, and how many of them are errors.  Read-only, since
    the run may still be active."""
    kinds = bytearray()  # by row: 1 a result, 2 an error
    with (folder / "journal").open("rb", buffering=1 << 20) as log:
        for _, line in _whole_lines(log):
            record = _parse(line)
            if record is not None:
                kinds.extend(bytes(max(0, record.index + 1 - len(kinds))))
                kinds[record.index] = 2 if record.is_error else 1
    num_errors = kinds.count(2)
    return kinds.count(1) + num_errors, num_errors


def _whole_lines(log: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Offset and bytes of each line, without a last line that was truncated by a crash."""
    offset = 0
    for line in log:
        if line.endswith(b"\n"):
            yield offset, line
        offset += len(line)


def _format(record: Record) -> bytes:
    facts = json.dumps(record.facts, separators=(",", ":")).encode("ascii")
    kind = b"error" if record.is_error else b"result"
    body = b"\t".join(
        (b"%d" % record.index, record.digest.hex().encode(), kind, facts, record.payload)
    )
    return b"%08x\t%s\n" % (zlib.crc32(body), body)


def _parse(line: bytes) -> Record | None:
    body = line[9:-1]
    try:
        if int(line[:8], 16) != zlib.crc32(body) or not line.endswith(b"\n"):
            return None
        index, row_digest, kind, facts, payload = body.split(b"\t", 4)
        return Record(
            int(index),
            bytes.fromhex(row_digest.decode()),
            kind == b"error",
            json.loads(facts),
            payload,
        )
    except ValueError:
        return None
