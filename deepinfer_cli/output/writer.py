"""Writes the journal's rows to the final files, or to stdout."""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import BinaryIO, Protocol

from deepinfer.errors import ConfigError
from deepinfer_cli.input.sharding import Shard

from .journal import Journal, Record
from .paths import OutputPaths
from .row_numbers import numbered

_PATIENCE_S = 1.0
_ENDINGS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}


def output_format(path: Path, *, takes_stdout: bool = True) -> str:
    """``jsonl`` or ``parquet``, by the file name extension.  Raises: ConfigError for any other,
    with the possible ones."""
    if path.suffix not in _ENDINGS:
        known = ", ".join(_ENDINGS) + (", or - for stdout" if takes_stdout else "")
        raise ConfigError(f"output {path}: expected a name that ends in {known}")
    if path.name.endswith(".errors.jsonl"):
        raise ConfigError(f"output {path}: this name is reserved for error rows; use another")
    return _ENDINGS[path.suffix]


class _Lines:
    """A text file with one payload per line, synced to the disk when it is closed."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=1 << 20)

    def write(self, payload: bytes) -> None:
        self._file.write(payload)
        self._file.write(b"\n")

    def close(self) -> None:
        with self._file:  # closes it, even if the disk is full
            self._file.flush()
            os.fsync(self._file.fileno())


class _Sink(Protocol):
    def write(self, payload: bytes) -> None: ...
    def close(self) -> None: ...


def write_files(records: Iterable[Record], folder: Path, format: str) -> int:
    """Write ``folder/results`` and ``folder/errors``; return the number of rows."""
    num_rows = 0
    with (
        closing(_results(folder / "results", format)) as results,
        closing(_Lines(folder / "errors")) as errors,
    ):
        for record in records:
            num_rows += 1
            (errors if record.is_error else results).write(record.payload)
    return num_rows


def _results(path: Path, format: str) -> _Sink:
    if format != "parquet":
        return _Lines(path)
    from .parquet_output import ParquetFile

    return ParquetFile(path)


def publish(folder: Path, paths: OutputPaths, report: bytes, *, has_errors: bool) -> None:
    """Rename the files to their final names; results come last, when all others exist."""
    with closing(_Lines(folder / "report")) as report_file:
        report_file.write(report)
    if has_errors:
        (folder / "errors").replace(paths.errors)
    else:
        paths.errors.unlink(missing_ok=True)  # from an earlier run that is being replaced
    (folder / "report").replace(paths.report)
    (folder / "results").replace(paths.results)
    _sync_folder(paths.results.parent)


def _sync_folder(folder: Path) -> None:
    """Sync the names in ``folder`` to the disk, if its file system supports that."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:  # writable, but not readable
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


class StdoutStream:
    """Writes results and error rows to stdout in order, each as early as possible.

    ``shard``: which rows to expect.
    """

    def __init__(self, journal: Journal, stream: BinaryIO, order: str, shard: Shard) -> None:
        self._journal = journal
        self._stream = stream
        self._order = order
        self._next = shard.number - 1
        self._step = shard.count

    def on_record(self, record: Record) -> None:
        if self._order == "completion":
            self._write(numbered(record))
        elif record.index == self._next:
            self._write(record)
            self._next += self._step
            while (ready := self._journal.record(self._next)) is not None:
                self._write(ready)
                self._next += self._step

    def write_rest(self, end: int) -> None:
        """After an early end: write finished rows before ``end`` that were waiting for earlier
        ones, as long as stdout is open."""
        if self._order == "input":
            for index in range(self._next, end, self._step):
                record = self._journal.record(index)
                if record is not None:
                    if not select.select([], [self._stream], [], _PATIENCE_S)[1]:
                        return
                    self._write(record)

    def _write(self, record: Record) -> None:
        try:
            self._stream.write(record.payload + b"\n")
            self._stream.flush()
        except OSError as error:
            error.filename = "stdout"
            raise
