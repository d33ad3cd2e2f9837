"""Reads the rows of a finished output, results and error rows, in the order of the input."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from deepinfer.errors import InputError
from deepinfer_cli.input.rows import encode_json
from deepinfer_cli.input.sharding import Shard
from deepinfer_cli.report.report import Report
from deepinfer_cli.strict_json import read_json
from deepinfer_cli.typed_json import from_json

from .journal import Journal, Record
from .paths import OutputPaths
from .row_numbers import split_number


@dataclass(frozen=True, slots=True)
class FinishedRow:
    """``payload`` is a line of the result file or of the errors file."""

    index: int
    is_error: bool
    payload: bytes


def finished_rows(
    paths: OutputPaths, report: Report, shard: Shard, scratch: Path
) -> Iterator[FinishedRow]:
    """Every row of a finished output in the order of its input, in bounded memory.

    report: that of the output.  scratch: a folder for a temporary copy of the results while they
    are sorted, if the output is in order of completion.
    Raises: InputError if a row is missing or duplicated, or the two files are from different runs.
    """
    if setting(report, "order") == "input":
        yield from _in_input_order(paths, shard)
    else:
        yield from _sorted(paths, report.rows.input * shard.count, shard, scratch)


def _in_input_order(paths: OutputPaths, shard: Shard) -> Iterator[FinishedRow]:
    """Error rows have row numbers; results are all other rows, in order."""
    errors = _error_rows(paths.errors)
    results = (payload for _, payload in _result_rows(paths.results))
    error = next(errors, None)
    index = shard.number - 1
    while True:
        if error is not None and error.index == index:
            yield error
            error = next(errors, None)
        else:
            payload = next(results, None)
            if payload is None:
                break
            yield FinishedRow(index, False, payload)
        index += shard.count
    if error is not None:
        raise InputError(
            f"{paths.errors} has row {error.index}, but {paths.results} ends before row {index}; "
            "they are not from the same run"
        )


def _sorted(paths: OutputPaths, end: int, shard: Shard, scratch: Path) -> Iterator[FinishedRow]:
    """Results in order of completion have row numbers, which must be below ``end``."""
    with closing(Journal(scratch, is_kept=False)) as journal:
        for row in chain(_error_rows(paths.errors), _numbered_rows(paths.results)):
            if not 0 <= row.index < end:
                raise InputError(f"{paths.results}: row {row.index} is not one of its {end:,} rows")
            if journal.finished(row.index) is not None:
                raise InputError(f"{paths.results}: row {row.index} occurs twice")
            journal.append(Record(row.index, b"", row.is_error, {}, row.payload))
        index, left = shard.number - 1, journal.num_rows
        while left:
            record = journal.record(index)
            if record is None:
                raise InputError(f"{paths.results}: row {index} is missing, but later rows exist")
            yield FinishedRow(index, record.is_error, record.payload)
            index, left = index + shard.count, left - 1


def finished_report(paths: OutputPaths) -> Report:
    """The report of a finished run.  Raises: InputError if it cannot be read."""
    try:
        report = from_json(Report, read_json(paths.report.read_bytes()))
    except FileNotFoundError:
        raise InputError(f"there is no {paths.report}, which describes the run") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{paths.report} is not a report of this version: {error}") from None
    if report.status != "finished":
        raise InputError(f"{paths.results} is {report.status}, not finished; run it again")
    return report


def setting(report: Report, name: str) -> Any:
    """The value of a setting in the run of ``report``; None if it had no such setting."""
    return report.settings[name].value if name in report.settings else None


def _result_rows(path: Path) -> Iterator[tuple[int | None, bytes]]:
    """Each result, with its row number if it has one, and without that field."""
    if path.suffix != ".parquet":
        with path.open("rb", buffering=1 << 18) as file:
            yield from map(split_number, _lines(file))
        return
    from .parquet_output import read_rows

    for row in read_rows(path):
        yield row.pop("row", None), encode_json(row)


def _numbered_rows(path: Path) -> Iterator[FinishedRow]:
    for place, (index, payload) in enumerate(_result_rows(path), 1):
        if index is None:
            raise InputError(f"{path}: result {place:,} does not say which row it is (row)")
        yield FinishedRow(index, False, payload)


def _error_rows(path: Path) -> Iterator[FinishedRow]:
    if not path.exists():
        return
    with path.open("rb", buffering=1 << 18) as file:
        for number, line in enumerate(_lines(file), 1):
            try:
                index = json.loads(line)["row"]
            except (ValueError, KeyError, TypeError):
                index = None
            if type(index) is not int:
                raise InputError(f"{path}: line {number:,} does not say which row it is (row)")
            yield FinishedRow(index, True, line)


def _lines(file: BinaryIO) -> Iterator[bytes]:
    return (line.removesuffix(b"\n") for line in file)
