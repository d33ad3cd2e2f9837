"""The rows of a finished output, results and error rows, back in the order of their input."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from deepinfer.errors import InputError
from deepinfer_cli.input.rows import encode_json
from deepinfer_cli.input.sharding import Shard
from deepinfer_cli.report.report import Report
from deepinfer_cli.settings.settings import Resolved
from deepinfer_cli.typed_json import from_json

from .partial import OutputPaths


@dataclass(frozen=True, slots=True)
class FinishedRow:
    """``payload`` is a line of the result file, or of the error file."""

    index: int
    is_error: bool
    payload: bytes


def finished_rows(paths: OutputPaths, shard: Shard) -> Iterator[FinishedRow]:
    """Every row of an output whose results are in input order, in bounded memory.

    An error row says which row it is; all others are the results, one after the other.
    Raises: InputError if the two files do not fit each other.
    """
    errors = _error_rows(paths.errors)
    results = _result_rows(paths.results)
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
            "the two are not of one run"
        )


def finished_report(paths: OutputPaths) -> Report:
    """The report of a finished run.  Raises: InputError if there is none that can be read."""
    try:
        report = from_json(Report, json.loads(paths.report.read_bytes()))
    except FileNotFoundError:
        raise InputError(f"there is no {paths.report}, which says what made the rows") from None
    except ValueError as error:
        raise InputError(f"{paths.report} is not a report of this version: {error}") from None
    if report.status != "finished":
        raise InputError(f"{paths.results} is {report.status}, not finished; run it again")
    if setting(report, "order") != "input":
        raise InputError(
            f"{paths.results} is in order of completion, so nobody knows which row is which; "
            "this needs --order input"
        )
    return report


def setting(report: Report, name: str) -> Any:
    """The value that a setting had in the run of ``report``; None if it knows no such setting."""
    return report.settings[name].value if name in report.settings else None


def changed_answers(report: Report, resolved: Resolved) -> dict[str, tuple[Any, Any]]:
    """The settings that answers depend on and that differ: name to (then, now)."""
    now = resolved.answers()
    pairs = {name: (setting(report, name), value) for name, value in now.items()}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _result_rows(path: Path) -> Iterator[bytes]:
    if path.suffix != ".parquet":
        with path.open("rb", buffering=1 << 18) as file:
            yield from _lines(file)
        return
    from .parquet_output import read_rows

    yield from map(encode_json, read_rows(path))


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
