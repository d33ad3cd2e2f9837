"""Opens an input and recognizes its format: JSONL (also gz, zst, stdin), CSV, Parquet, dataset
folder.

Formats are recognized by content where possible.  Rows are an iterator, in bounded memory.
"""

from __future__ import annotations

import difflib
import io
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from deepinfer.errors import InputError

from .compressed import open_plain, read_errors
from .foreign import LONGEST_MAGIC, refuse_foreign
from .lines import read_csv, read_jsonl
from .rows import InputRow, map_fields, read_json_text, too_long_row

_COMPRESSED = (".gz", ".zst")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """An opened input.

    rows: raises InputError where the input is damaged; the rows before are valid.
    share_read: the fraction of the input that has been read (0 to 1), None if unknown.
    num_rows: if the file says it.  close: closes the file.
    """

    name: str
    format: str
    rows: Iterator[InputRow]
    share_read: Callable[[], float | None]
    num_rows: int | None = None
    close: Callable[[], None] = lambda: None


def open_reader(
    source: str, *, mapping: Mapping[str, str] | None = None, max_row_bytes: int = 64 * 2**20
) -> Reader:
    """Open ``source``, a path or ``-`` for stdin.  Raises: InputError."""
    mapping = mapping or {}
    if not source:
        raise InputError("the name of the input is empty; give a file, or - for stdin")
    if source != "-" and os.path.isdir(source):
        from .tables import open_dataset

        num_rows, rows = open_dataset(Path(source), mapping)
        return _reader(source, "dataset", rows, mapping, max_row_bytes, num_rows)
    stream, size = _open(source)
    name = "stdin" if source == "-" else source
    head = _peek(stream, name)
    if head.startswith(b"PAR1") or source.endswith(".parquet"):
        is_file = source != "-" and stream.seekable()
        if source != "-":
            stream.close()
        if not is_file:
            raise InputError(f"Parquet cannot be read from {_pipe(source)}; give the file's path")
        from .tables import open_parquet

        num_rows, rows = open_parquet(Path(source), mapping)
        return _reader(name, "parquet", rows, mapping, max_row_bytes, num_rows)
    try:
        refuse_foreign(head, name)
    except InputError:
        stream.close()
        raise
    is_csv = _bare_ending(source) in (".csv", ".tsv")  # a header with tabs is refused
    rows = _text_rows(stream, head, name, max_row_bytes, mapping if is_csv else None)
    reader = _reader(name, "csv" if is_csv else "jsonl", rows, mapping, max_row_bytes)
    share_read = reader.share_read if size is None else _share(stream, size)
    close = reader.close if source == "-" else stream.close
    return replace(reader, share_read=share_read, close=close)


def _reader(
    name: str,
    format: str,
    rows: Iterator[InputRow],
    mapping: Mapping[str, str],
    max_row_bytes: int,
    num_rows: int | None = None,
) -> Reader:
    def prepared() -> Iterator[InputRow]:
        for row in rows:
            if len(row.raw) > max_row_bytes and row.error is None:
                yield too_long_row(row.index, row.line, row.raw, len(row.raw), max_row_bytes)
                continue
            yield read_json_text(map_fields(row, mapping))

    return Reader(
        name=name, format=format, rows=prepared(), share_read=lambda: None, num_rows=num_rows
    )


def _open(source: str) -> tuple[io.BufferedReader[Any], int | None]:
    """The raw bytes, and their number if known."""
    if source == "-":
        return _stdin(), None
    try:
        stream = io.BufferedReader(io.FileIO(source), 1 << 18)
        size = os.fstat(stream.fileno()).st_size
        return stream, size if stream.seekable() and size else None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(f"cannot read {source}: {reason}{_nearest(Path(source))}") from error


def _nearest(path: Path) -> str:
    """A hint for a file that does not exist: a similar name, or the target of a link."""
    with suppress(OSError):
        if path.is_symlink():
            return f"; it is a link to {os.readlink(path)}"
        if not path.exists():
            for name in difflib.get_close_matches(path.name, os.listdir(path.parent), 1, 0.8):
                return f"; did you mean {path.with_name(name)}?"
            if " " in path.name and not path.suffix:
                return """; a prompt goes into a row: echo '{"prompt": "Hi"}' | deepinfer run -"""
    return ""


def _pipe(source: str) -> str:
    return "stdin" if source == "-" else f"a pipe ({source})"


def _stdin() -> io.BufferedReader[Any]:
    if sys.stdin is None:
        raise InputError("stdin is closed; give an input file")
    stream: Any = sys.stdin.buffer
    return stream if isinstance(stream, io.BufferedReader) else io.BufferedReader(stream)


def _peek(stream: io.BufferedReader[Any], name: str) -> bytes:
    try:
        return stream.peek(LONGEST_MAGIC)[:LONGEST_MAGIC]
    except OSError as error:
        raise InputError(f"cannot read {name}: {error.strerror or error}") from error


def _share(stream: BinaryIO, size: int) -> Callable[[], float | None]:
    def share_read() -> float | None:
        return 1.0 if stream.closed else min(1.0, stream.tell() / size)

    return share_read


def _bare_ending(source: str) -> str:
    path = Path(source)
    return Path(path.stem).suffix if path.suffix in _COMPRESSED else path.suffix


def _text_rows(
    stream: io.BufferedReader[Any],
    head: bytes,
    name: str,
    max_row_bytes: int,
    csv_mapping: Mapping[str, str] | None,
) -> Iterator[InputRow]:
    """``csv_mapping``: field to column for CSV, None for JSONL."""
    line = 0
    try:
        plain = open_plain(stream, head)
        if csv_mapping is None:
            rows = read_jsonl(plain, max_row_bytes)
        else:
            rows = read_csv(plain, max_row_bytes, name, csv_mapping)
        for row in rows:
            line = row.line
            yield row
    except Exception as error:
        if not isinstance(error, read_errors()):
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(
            f"{name}: after line {line:,} the rest cannot be read ({reason}); "
            "check or copy the file again"
        ) from error
