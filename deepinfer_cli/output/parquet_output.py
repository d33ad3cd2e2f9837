"""Writes result rows as Parquet, with the same schema for every run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_GROUP_ROWS = 4_096
_GROUP_BYTES = 32 * 2**20
_BUFFER_BYTES = 1 << 20


def _struct(**fields: Any) -> Any:
    return pa.struct(list(fields.items()))


_TEXT, _INT, _FLOAT = pa.string(), pa.int64(), pa.float64()
_ALTERNATIVE = _struct(token_id=_INT, logprob=_FLOAT)
_ANSWER: dict[str, Any] = {
    "content": _TEXT,
    "reasoning": _TEXT,
    "tool_calls": pa.list_(
        _struct(id=_TEXT, type=_TEXT, function=_struct(name=_TEXT, arguments=_TEXT))
    ),
    "finish_reason": _TEXT,
    "stop_reason": _TEXT,
    "constraint": _TEXT,
    "warnings": pa.list_(_TEXT),
    "logprobs": pa.list_(
        _struct(token_id=_INT, logprob=_FLOAT, top_logprobs=pa.list_(_ALTERNATIVE))
    ),
    "token_ids": pa.list_(_INT),
    "seed": pa.uint64(),
    "timing": _struct(queued_s=_FLOAT, ttft_s=_FLOAT, total_s=_FLOAT),
}
_USAGE = _struct(
    prompt_tokens=_INT, completion_tokens=_INT, reasoning_tokens=_INT, cached_tokens=_INT
)
# Fields whose structure differs from row to row are stored as JSON text.
_JSON_FIELDS = {"sampling", "notes", "input"}
SCHEMA = pa.schema(
    {
        "id": _TEXT,
        **_ANSWER,
        "samples": pa.list_(_struct(**_ANSWER)),
        "prompt_token_ids": pa.list_(_INT),
        "usage": _USAGE,
        "sampling": _TEXT,
        "notes": _TEXT,
        "input": _TEXT,
        "row": _INT,  # row number, if the file is not in input order
    }
)


class ParquetFile:
    """Writes result rows, given as JSON lines, in row groups of bounded size."""

    def __init__(self, path: Path) -> None:
        self._writer = pq.ParquetWriter(path, SCHEMA, compression="zstd")
        self._rows: list[dict[str, Any]] = []
        self._size = 0

    def write(self, payload: bytes) -> None:
        self._rows.append(_table_row(json.loads(payload)))
        self._size += len(payload)
        if len(self._rows) >= _GROUP_ROWS or self._size >= _GROUP_BYTES:
            self._write_group()

    def close(self) -> None:
        if self._rows:
            self._write_group()
        self._writer.close()

    def _write_group(self) -> None:
        self._writer.write_table(pa.Table.from_pylist(self._rows, schema=SCHEMA))
        self._rows.clear()
        self._size = 0


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The result rows of a file written by ``ParquetFile``, without absent fields."""
    with pq.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER_BYTES) as file:
        for batch in file.iter_batches(batch_size=_GROUP_ROWS // 16, use_threads=False):
            for row in batch.to_pylist():
                row = _without_nulls(row)
                for name in _JSON_FIELDS & row.keys():
                    row[name] = json.loads(row[name])
                yield row


def _without_nulls(value: Any) -> Any:
    """Without the null keys that a struct's schema adds."""
    if isinstance(value, dict):
        return {name: _without_nulls(v) for name, v in value.items() if v is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _table_row(row: dict[str, Any]) -> dict[str, Any]:
    for answer in (row, *row.get("samples", ())):
        if answer.get("stop_reason") is not None:
            answer["stop_reason"] = str(answer["stop_reason"])
    for name in _JSON_FIELDS & row.keys():
        row[name] = json.dumps(row[name], ensure_ascii=False)
    return {name: _encodable(value) for name, value in row.items()}


def _encodable(value: Any) -> Any:
    """Text without lone surrogates, which UTF-8 cannot encode."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, list):
        return (
            [_encodable(item) for item in value] if value and isinstance(value[0], str) else value
        )
    return value
