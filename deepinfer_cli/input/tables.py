"""Reads rows of columnar files: Parquet, and folders saved by ``datasets``."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from deepinfer.errors import InputError, RowError
from deepinfer.recipes.sampling_fields import SAMPLING_FIELDS

from .rows import InputRow, encode_json, fields_of_column, first_repeated

# Fields in which decimals become numbers; elsewhere they become text, with all digits.
_NUMBER_FIELDS = {*SAMPLING_FIELDS, "prompt_token_ids", "body"}

# Limits of a batch: rows of usual size, and bytes if a row group has larger rows.
_BATCH_ROWS, _BATCH_BYTES = 256, 16 * 2**20
_BUFFER_BYTES = 1 << 20


def open_parquet(path: Path, mapping: Mapping[str, str]) -> tuple[int, Iterator[InputRow]]:
    """The number of rows, and the rows, read in batches, never a whole row group at a time.
    ``mapping``: field to column.

    Raises: InputError if the file is not Parquet or is damaged, possibly later, while reading.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # Not memory-mapped, since truncating the file would then kill the process; buffered, since
        # columns of a row group are otherwise read completely.
        file = pq.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER_BYTES)
        _check_columns(file.schema_arrow.names, str(path))
        batches = file.iter_batches(batch_size=_batch_size(file.metadata), use_threads=False)
        num_rows = file.metadata.num_rows
        return num_rows, _rows(batches, str(path), mapping, num_rows)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _damaged(str(path), error) from error


def open_dataset(folder: Path, mapping: Mapping[str, str]) -> tuple[int | None, Iterator[InputRow]]:
    """The same for a folder of ``Dataset.save_to_disk``.  Raises: InputError."""
    state = folder / "state.json"
    if (folder / "dataset_dict.json").is_file():
        splits = ", ".join(sorted(p.name for p in folder.iterdir() if p.is_dir()))
        raise InputError(f"{folder} holds several splits ({splits}); name one: {folder}/SPLIT")
    if not state.is_file():
        raise InputError(f"{folder} is a folder, but not a saved dataset (it has no state.json)")
    try:
        names = [entry["filename"] for entry in json.loads(state.read_bytes())["_data_files"]]
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise _damaged(str(state), error) from error
    return None, _rows(_arrow_batches([folder / name for name in names]), str(folder), mapping)


def _batch_size(metadata: Any) -> int:
    """Rows per batch: fewer if rows are large."""
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    largest = max((g.total_byte_size // max(g.num_rows, 1) for g in groups), default=0)
    return max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(largest, 1)))


def _check_columns(names: list[str], where: str) -> None:
    """Refuse duplicate column names, of which one would be lost silently."""
    if len(set(names)) != len(names):
        raise InputError(f"{where} has column {first_repeated(names)[:40]!r} twice; rename one")


def _arrow_batches(paths: list[Path]) -> Iterator[Any]:
    import pyarrow as pa

    for path in paths:
        with pa.OSFile(str(path)) as source, pa.ipc.open_stream(source) as stream:
            _check_columns(stream.schema.names, str(path))
            for batch in stream:
                for start in range(0, batch.num_rows, _BATCH_ROWS):
                    yield batch.slice(start, _BATCH_ROWS)


def _rows(
    batches: Iterator[Any], name: str, mapping: Mapping[str, str], num_rows: int | None = None
) -> Iterator[InputRow]:
    """``num_rows``: how many there must be, if the file says it."""
    import pyarrow as pa

    index = 0
    try:
        for batch in batches:
            for record in _records(batch):
                yield _row(index, record, mapping)
                index += 1
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _damaged(f"{name}: after row {index:,}", error) from error
    if num_rows is not None and index < num_rows:  # a truncated file may end without an error
        raise InputError(f"{name} ends after row {index:,} of {num_rows:,}; copy the file again")


def _records(batch: Any) -> Iterator[dict[str, Any] | RowError]:
    """The rows of a batch; a cell that cannot be read is an error of its row only."""
    try:
        yield from batch.to_pylist()
    except (UnicodeDecodeError, ValueError, OverflowError):
        for position in range(batch.num_rows):
            row = batch.slice(position, 1)
            try:
                yield {name: _cell(name, row.column(name)) for name in row.schema.names}
            except RowError as error:
                yield error


def _cell(name: str, column: Any) -> Any:
    """The value of a single cell; text if Python cannot represent it, such as a date before the
    year 1.  Raises: RowError if neither is possible."""
    import pyarrow as pa

    try:
        return column.to_pylist()[0]
    except UnicodeDecodeError:
        raise RowError("invalid_utf8", f"{name[:40]}: its text is not UTF-8") from None
    except (ValueError, OverflowError) as error:
        try:
            return column.cast(pa.string()).to_pylist()[0]
        except pa.ArrowException:
            raise RowError("invalid_value", f"{name[:40]}: cannot be read: {error}") from None


def _row(index: int, record: dict[str, Any] | RowError, mapping: Mapping[str, str]) -> InputRow:
    line, prompt = index + 1, mapping.get("prompt", "prompt")
    if isinstance(record, RowError):
        return InputRow(index, line, b"", None, record)
    values: dict[str, Any] = {}
    for name, value in record.items():
        is_number = not _NUMBER_FIELDS.isdisjoint(fields_of_column(name, mapping))
        values[name] = _json_value(value, _number if is_number else str)
    if isinstance(text := record.get(prompt), bytes) and _decoded(text) is None:
        error = RowError("invalid_utf8", f"{prompt}: its bytes are not UTF-8 text")
        return InputRow(index, line, text, None, error)  # used as input again, it is refused again
    fields = {name: _without_nulls(value) for name, value in values.items() if value is not None}
    return InputRow(index, line, encode_json(values), fields, has_json_text=True)


def _number(value: Decimal) -> int | float:
    return int(value) if value == value.to_integral_value() else float(value)


def _json_value(value: Any, decimal: Callable[[Decimal], Any]) -> Any:
    """``value`` in JSON's types: other types of tables become text, NaN becomes null.
    ``decimal``: conversion of decimal numbers."""
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, list | tuple):
        return [_json_value(item, decimal) for item in value]
    if isinstance(value, dict):
        return {str(key): _json_value(item, decimal) for key, item in value.items()}
    if isinstance(value, bytes):
        text = _decoded(value)
        return base64.b64encode(value).decode("ascii") if text is None else text
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return decimal(value)
    if isinstance(value, timedelta) or not isinstance(value, str | int | None):
        return str(value)
    return value


def _decoded(value: bytes) -> str | None:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _without_nulls(value: Any) -> Any:
    """Drop nulls: in a table every struct has all keys, and null means absent."""
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return value


def _damaged(where: str, error: Exception) -> InputError:
    reason = " ".join(str(error).split())[:200]
    return InputError(f"{where}: cannot be read ({reason}); check or copy the file again")
