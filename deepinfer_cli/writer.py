"""From the journal to what the user sees: the final files, or a stream on stdout."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, Protocol

from deepinfer.errors import ConfigError

from .journal import Journal, Record
from .partial import OutputPaths

_ENDINGS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}


def output_format(path: Path) -> str:
    """``jsonl`` or ``parquet``, by the ending.  Raises: ConfigError for any other ending."""
    if path.suffix not in _ENDINGS:
        known = ", ".join(_ENDINGS)
        raise ConfigError(f"output {path}: expected a name that ends in {known}, or - for stdout")
    return _ENDINGS[path.suffix]


class _Lines:
    """A text file of payloads, one a line, on disk when it is closed."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=1 << 20)

    def write(self, payload: bytes) -> None:
        self._file.write(payload)
        self._file.write(b"\n")

    def close(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()


class _Sink(Protocol):
    def write(self, payload: bytes) -> None: ...
    def close(self) -> None: ...


def write_files(records: Iterable[Record], folder: Path, format: str) -> int:
    """Write ``folder/results`` and ``folder/errors``; return the number of rows."""
    results: _Sink
    if format == "parquet":
        from .parquet_output import ParquetFile

        results = ParquetFile(folder / "results")
    else:
        results = _Lines(folder / "results")
    errors = _Lines(folder / "errors")
    num_rows = 0
    for record in records:
        num_rows += 1
        (errors if record.is_error else results).write(record.payload)
    results.close()
    errors.close()
    return num_rows


def publish(folder: Path, paths: OutputPaths, report: bytes, *, has_errors: bool) -> None:
    """Give the files their final names.  The results come last: where they are, all is."""
    report_file = _Lines(folder / "report")
    report_file.write(report)
    report_file.close()
    if has_errors:
        (folder / "errors").replace(paths.errors)
    else:
        paths.errors.unlink(missing_ok=True)  # of an earlier run that was replaced
    (folder / "report").replace(paths.report)
    (folder / "results").replace(paths.results)
    parent = os.open(paths.results.parent, os.O_RDONLY)
    os.fsync(parent)
    os.close(parent)


class StdoutStream:
    """Writes rows to stdout as soon as their turn comes, results and error rows alike."""

    def __init__(self, journal: Journal, stream: BinaryIO, order: str) -> None:
        self._journal = journal
        self._stream = stream
        self._order = order
        self._next = 0

    def on_record(self, record: Record) -> None:
        if self._order == "completion":
            self._write(record)
        elif record.index == self._next:
            self._write(record)
            self._next += 1
            while (ready := self._journal.record(self._next)) is not None:
                self._write(ready)
                self._next += 1

    def write_rest(self, num_rows: int) -> None:
        """After an early end: the finished rows that still wait for one before them."""
        if self._order == "input":
            for index in range(self._next, num_rows):
                record = self._journal.record(index)
                if record is not None:
                    self._write(record)

    def _write(self, record: Record) -> None:
        self._stream.write(record.payload + b"\n")
        self._stream.flush()
