"""``--retry-failed`` on a finished output: puts its results, without errors, into a journal."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from itertools import islice

from deepinfer.errors import ConfigError, InputError, RowError
from deepinfer.recipes.rows import parse_row
from deepinfer_cli.input.input_meter import InputMeter
from deepinfer_cli.input.reader import Reader
from deepinfer_cli.input.rows import InputRow
from deepinfer_cli.input.sharding import Shard
from deepinfer_cli.report.report import Report
from deepinfer_cli.settings.layers import Resolved
from deepinfer_cli.settings.settings import Settings

from .basis import Basis
from .fingerprint import fingerprint
from .finished_rows import FinishedRow, finished_report, finished_rows, setting
from .journal import Journal, Record, digest
from .manifest import write_manifest
from .partial import PartialFolder
from .paths import OutputPaths
from .results import facts_of_row


def reopen(folder: PartialFolder, reader: Reader, resolved: Resolved, basis: Basis) -> None:
    """Turn ``folder`` into an unfinished run that has all results of the finished one.

    The output itself stays as it is until the run is finished again.
    Raises: ConfigError if its settings differ, InputError if its input does.
    """
    paths = folder.paths
    report = finished_report(paths)
    changed = _changed(report, resolved, basis)
    if changed is not None:
        raise ConfigError(
            f"{paths.results} was made with {changed[0]}; {changed[1]} to retry its failed rows, "
            "or --force to answer all rows again"
        )
    if report.rows.errors and not paths.errors.exists():
        raise InputError(
            f"{paths.errors} is missing, which lists the {report.rows.errors:,} failed rows; "
            "restore it, or --force to answer all rows again"
        )
    folder.clear()
    try:
        with closing(Journal(folder.path)) as journal:
            meter = InputMeter(reader.rows)
            for record in _results(iter(meter), report, folder, resolved.settings):
                journal.append(record)
            if journal.num_rows != report.rows.results:
                raise InputError(
                    f"{paths.results} holds {journal.num_rows:,} rows, {paths.report} counts "
                    f"{report.rows.results:,}; restore the files, or --force to "
                    "answer all rows again"
                )
            if meter.digest() != report.input.digest:
                raise _foreign(paths, "its rows have another content")
            journal.sync()
        for kept in (folder.earlier_report, folder.retried_report):
            shutil.copyfile(paths.report, kept)
        write_manifest(folder.path, basis)
    except BaseException:  # also Ctrl-C: an incomplete journal is useless
        folder.remove()
        raise


def _changed(report: Report, resolved: Resolved, basis: Basis) -> tuple[str, str] | None:
    """As ``Basis.changed_since``; of the model, a report has only the fingerprint."""
    now = resolved.answers()
    then = {name: setting(report, name) for name in now}
    if report.constraint_digest is not None:
        then["constraint"] = report.constraint_digest
    if "constraint" in basis.settings:
        now["constraint"] = basis.settings["constraint"]
    if changed := Basis(now).changed_since(Basis(then)):
        return changed
    model = fingerprint(basis.model_files) if basis.model_files else report.model_fingerprint
    if report.model_fingerprint in (None, model):
        return None
    return (
        f"another model (fingerprint {report.model_fingerprint} then, {model} now)",
        "put the first model back",
    )


def _results(
    all_rows: Iterator[InputRow], report: Report, folder: PartialFolder, settings: Settings
) -> Iterator[Record]:
    """The results of the output, each with its input row."""
    shard, paths = Shard.of(settings.shard), folder.paths
    wanted = islice(all_rows, settings.limit)
    rows = (row for row in wanted if shard.holds(row.index))
    for finished in finished_rows(paths, report, shard, folder.path):
        row = next(rows, None)
        if row is None:
            end = "the input" if settings.limit is None else f"--limit {settings.limit}"
            raise _foreign(paths, f"it has a row {finished.index}, {end} ends before")
        if not finished.is_error:
            yield _record(row, finished, paths, settings)
    for _ in wanted:  # read on: the digest covers the whole input
        pass


def _record(row: InputRow, finished: FinishedRow, paths: OutputPaths, settings: Settings) -> Record:
    result = json.loads(finished.payload)
    if _octets(result.get("id")) != _octets(row.row_id):
        raise _foreign(paths, f"row {row.index} is {row.row_id}, and there {result.get('id')}")
    facts = facts_of_row(result, _kind(row, settings))
    return Record(row.index, digest(row.raw), False, facts, finished.payload)


def _octets(row_id: object) -> bytes:
    """An id as in Parquet, which has no lone surrogates."""
    return str(row_id).encode("utf-8", "replace")


def _kind(row: InputRow, settings: Settings) -> str:
    try:
        return parse_row(row.fields or {}, row.index, raw=settings.raw).kind
    except RowError:
        return "unknown"


def _foreign(paths: OutputPaths, reason: str) -> InputError:
    return InputError(
        f"{paths.results} was made from another input ({reason}); give its errors file "
        f"{paths.errors} to deepinfer run, or --force to answer all rows again"
    )
