"""Rows of an input file as tests look at them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

from deepinfer_cli.input.reader import open_reader
from deepinfer_cli.input.rows import InputRow


def read_input(path: Path, data: bytes | None = None, **options: Any) -> list[InputRow]:
    """All rows of ``path``, which holds ``data`` if given."""
    if data is not None:
        path.write_bytes(data)
    with closing(open_reader(str(path), **options)) as reader:
        return list(reader.rows)


def fields_of(rows: list[InputRow]) -> list[Any]:
    """Fields of good rows, kinds of errors of the others."""
    return [row.fields if row.error is None else row.error.kind for row in rows]
