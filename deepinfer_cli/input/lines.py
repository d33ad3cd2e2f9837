"""Rows of text files: JSONL, split at newlines only, and CSV."""

from __future__ import annotations

import contextlib
import csv
import io
import json
from collections.abc import Iterator
from typing import Any, BinaryIO

from deepinfer.errors import InputError, RowError
from deepinfer.recipes.known_fields import KNOWN_FIELDS

from .rows import (
    InputRow,
    RepeatedKeyError,
    encode_json,
    first_repeated,
    make_row,
    too_long_row,
    unique_keys,
)

_BOM = b"\xef\xbb\xbf"
_LONGEST_CELL = 8  # times a row's limit: a longer one is no row, but a file without its quotes
_KEPT_BYTES = 4_096
# Columns that are text even where they look like a number or a list.
_TEXT_COLUMNS = {"prompt", "id", "custom_id"}


def read_jsonl(stream: BinaryIO, max_row_bytes: int) -> Iterator[InputRow]:
    """One row for each line that is not blank.  A longer line than the limit is skipped in
    bounded memory and becomes an error row that keeps its beginning."""
    index = line = 0
    while raw := stream.readline(max_row_bytes + 2):
        line += 1
        is_long = len(raw.removesuffix(b"\n").removesuffix(b"\r")) > max_row_bytes
        size = len(raw)
        while is_long and not raw.endswith(b"\n"):
            tail = stream.readline(1 << 20)
            if not tail:
                break
            size += len(tail)
            raw = raw[:_KEPT_BYTES] + tail[-1:]
        if line == 1 and raw.startswith(_BOM):
            raw = raw[len(_BOM) :]
        raw = raw.removesuffix(b"\n").removesuffix(b"\r")
        if not is_long and not raw.strip():
            continue
        if is_long:
            yield too_long_row(index, line, raw, size, max_row_bytes)
        else:
            yield make_row(index, line, raw)
        index += 1


def read_csv(stream: BinaryIO, max_row_bytes: int, name: str) -> Iterator[InputRow]:
    """One row for each record under a header line.  Empty cells are absent fields; cells of
    columns other than prompt and ids that hold JSON (numbers, lists, true) are that value."""
    csv.field_size_limit(_LONGEST_CELL * max_row_bytes)
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline="")
    try:
        yield from _records(csv.reader(text, strict=True), name)
    finally:
        with contextlib.suppress(ValueError):  # the stream is closed already
            text.detach()


def _records(reader: Any, name: str) -> Iterator[InputRow]:
    header: list[str] = []
    index = 0
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise InputError(
                f"{name}: line {reader.line_num} is not CSV: {error}; quote cells that hold quotes"
            ) from error
        if not header:
            header = _check_header(cells, name)
        elif cells:
            yield _csv_row(index, reader.line_num, header, cells)
            index += 1


def _check_header(cells: list[str], name: str) -> list[str]:
    if len(set(cells)) != len(cells):
        twice = first_repeated(cells)
        raise InputError(f"{name}: the header names column {twice[:40]!r} twice; rename one")
    return cells


def _csv_row(index: int, line: int, header: list[str], cells: list[str]) -> InputRow:
    if len(cells) != len(header):
        raw = ",".join(cells).encode("utf-8", "surrogateescape")
        message = f"the record has {len(cells)} cells, the header has {len(header)}"
        return InputRow(index, line, raw, None, RowError("wrong_cell_count", message))
    record = dict(zip(header, cells, strict=True))
    try:
        "".join(cells).encode("utf-8")
    except UnicodeEncodeError:
        raw = ",".join(cells).encode("utf-8", "surrogateescape")
        return InputRow(index, line, raw, None, RowError("invalid_utf8", "a cell is not UTF-8"))
    fields = {key: cell for key, cell in record.items() if cell != ""}
    return InputRow(index, line, encode_json(record), fields)


def parse_cells(row: InputRow) -> InputRow:
    """Read the JSON in a CSV row's cells (after columns were mapped to fields)."""
    if row.fields is None:
        return row
    fields: dict[str, Any] = {}
    for name, cell in row.fields.items():
        try:
            fields[name] = cell if name in _TEXT_COLUMNS else _json_cell(cell)
        except RepeatedKeyError as error:
            if name in KNOWN_FIELDS:
                wrong = RowError("invalid_json", f"{name}: {error}")
                return InputRow(row.index, row.line, row.raw, None, wrong)
            fields[name] = cell
    return InputRow(row.index, row.line, row.raw, fields)


def _json_cell(cell: Any) -> Any:
    try:
        value = json.loads(cell, object_pairs_hook=unique_keys)
    except RepeatedKeyError:
        raise
    except (ValueError, TypeError, RecursionError):
        return cell
    return cell if isinstance(value, str) else value
