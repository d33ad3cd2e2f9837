"""Reads rows of text files: JSONL, split only at newlines, and CSV."""

from __future__ import annotations

import contextlib
import csv
import io
import json
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any, BinaryIO

from deepinfer.errors import InputError, RowError
from deepinfer.recipes.known_fields import KNOWN_FIELDS
from deepinfer_cli.strict_json import finite, refuse_constant

from .rows import (
    InputRow,
    RepeatedKeyError,
    encode_json,
    fields_of_column,
    first_repeated,
    make_row,
    too_long_row,
    unique_keys,
)

_BOM = b"\xef\xbb\xbf"
_LONGEST_CELL = 8  # times the limit of a row; a longer cell means that a closing quote is missing
_KEPT_BYTES = 4_096
# Fields that are always text, even if they look like a number or a list.
_TEXT_FIELDS = {"prompt", "id", "custom_id"}


def read_jsonl(stream: BinaryIO, max_row_bytes: int) -> Iterator[InputRow]:
    """One row per line that is not blank.  A line longer than the limit becomes an error row with
    its beginning; the rest is skipped in bounded memory."""
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


def read_csv(
    stream: BinaryIO, max_row_bytes: int, name: str, mapping: Mapping[str, str]
) -> Iterator[InputRow]:
    """One row per record after a header line.  Empty cells are absent fields; cells that hold JSON
    (numbers, lists, true) become that value, except in the columns of prompt and ids.
    ``mapping``: field to column."""
    csv.field_size_limit(_LONGEST_CELL * max_row_bytes)
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline="")
    try:
        yield from _records(csv.reader(text, strict=True), name, mapping)
    finally:
        with contextlib.suppress(ValueError):  # the stream is closed already
            text.detach()


def _records(reader: Any, name: str, mapping: Mapping[str, str]) -> Iterator[InputRow]:
    columns: list[_Column] = []
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
        if not columns:
            columns = [_Column.of(cell, mapping) for cell in _check_header(cells, name, mapping)]
        elif cells:
            yield _csv_row(index, reader.line_num, columns, cells)
            index += 1


def _check_header(cells: list[str], name: str, mapping: Mapping[str, str]) -> list[str]:
    """Raises: InputError for a header with which no row can be read."""
    if len(cells) == 1 and cells[0] not in mapping.values() and set(cells[0]) & set(";\t"):
        raise InputError(
            f"{name}: the header is one column, {cells[0][:40]!r}; cells must be separated by "
            "commas: convert the file"
        )
    if len(set(cells)) != len(cells):
        twice = first_repeated(cells)
        raise InputError(f"{name}: the header names column {twice[:40]!r} twice; rename one")
    return cells


@dataclass(frozen=True, slots=True)
class _Column:
    """A column and its fields, which determine how cells are read."""

    name: str
    fields: Set[str]

    @classmethod
    def of(cls, name: str, mapping: Mapping[str, str]) -> _Column:
        return cls(name, fields_of_column(name, mapping))

    def value(self, cell: str) -> Any:
        """The value of a cell, None if empty.  Raises: RowError if a field that the recipe reads is
        an object with a duplicate key."""
        if cell == "":
            return None
        if self.fields & _TEXT_FIELDS:
            return cell
        try:
            return _json_cell(cell)
        except RepeatedKeyError as error:
            known = sorted(self.fields & KNOWN_FIELDS)
            if known:
                raise RowError("invalid_json", f"{known[0]}: {error}") from None
            return cell


def _csv_row(index: int, line: int, columns: list[_Column], cells: list[str]) -> InputRow:
    if len(cells) != len(columns):
        message = f"the record has {len(cells)} cells, the header has {len(columns)}"
        return InputRow(index, line, _joined(cells), None, RowError("wrong_cell_count", message))
    try:
        "".join(cells).encode("utf-8")
    except UnicodeEncodeError:
        wrong = RowError("invalid_utf8", "a cell is not UTF-8")
        return InputRow(index, line, _joined(cells), None, wrong)
    record: dict[str, Any] = {}
    error: RowError | None = None
    for column, cell in zip(columns, cells, strict=True):
        try:
            record[column.name] = column.value(cell)
        except RowError as found:
            record[column.name], error = cell, found
    fields = {c.name: record[c.name] for c, cell in zip(columns, cells, strict=True) if cell != ""}
    return InputRow(index, line, encode_json(record), None if error else fields, error)


def _joined(cells: list[str]) -> bytes:
    return ",".join(cells).encode("utf-8", "surrogateescape")


_CELLS = json.JSONDecoder(
    object_pairs_hook=unique_keys, parse_constant=refuse_constant, parse_float=finite
)


def _json_cell(cell: str) -> Any:
    """The JSON in a cell; the text itself if it is not JSON, or cannot be written as JSON."""
    try:
        value = _CELLS.decode(cell)
        if isinstance(value, list | dict):
            encode_json([value])  # nested as it will be in its row
    except RepeatedKeyError:
        raise
    except (ValueError, RecursionError):
        return cell
    return cell if isinstance(value, str) else value
