"""``deepinfer run``: answers a prompt file and writes results, error rows and a report."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepinfer import __version__
from deepinfer.errors import ConfigError, EngineError, InputError
from deepinfer_cli.exit_code import exit_code
from deepinfer_cli.input.reader import Reader, open_reader
from deepinfer_cli.input.sharding import Shard
from deepinfer_cli.output.basis import Basis
from deepinfer_cli.output.disk import disk_full
from deepinfer_cli.output.fingerprint import model_files
from deepinfer_cli.output.finished_rows import finished_report
from deepinfer_cli.output.journal import Journal, JournalGoneError
from deepinfer_cli.output.manifest import is_begun
from deepinfer_cli.output.partial import PartialFolder
from deepinfer_cli.output.paths import OutputPaths, check_inputs_are_safe, default_output
from deepinfer_cli.output.retry import reopen
from deepinfer_cli.output.row_numbers import numbered
from deepinfer_cli.output.writer import StdoutStream, output_format, publish, write_files
from deepinfer_cli.report.parts import earlier_report
from deepinfer_cli.report.prometheus import export_metrics
from deepinfer_cli.report.report import Report, encode_report
from deepinfer_cli.settings.as_given import errors_as_given
from deepinfer_cli.settings.constraint import answers_depend_on
from deepinfer_cli.settings.layers import Resolved
from deepinfer_cli.settings.settings import Settings
from deepinfer_cli.stdio import data_stream

from .console import Console, make_console
from .job import Job, MakeEngine
from .model import check_sampling, model_folder
from .status_file import StatusFile, command_line, read_status

_AGAIN = "run the same command again to continue"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """The command line besides settings.  ``output`` None: next to the input.  ``constraint``: for
    rows without one.  ``arguments``: those of the program."""

    source: str
    output: str | None = None
    constraint: dict[str, Any] | None = None
    force: bool = False
    retry_failed: bool = False
    arguments: Sequence[str] = ()
    json: bool = False
    quiet: bool = False


def run(request: RunRequest, resolved: Resolved, make_engine: MakeEngine) -> int:
    """Answer every row of the input; returns the exit code.  Raises: DeepInferError, OSError."""
    with errors_as_given(resolved.origins):
        check_sampling(resolved.settings, is_constrained=request.constraint is not None)
        return _run(request, resolved, make_engine)


def _run(request: RunRequest, resolved: Resolved, make_engine: MakeEngine) -> int:
    output = default_output(request.source) if request.output is None else request.output
    if request.json:
        data_stream()
    if output == "-" and request.json:
        raise ConfigError("--json and -o - both use stdout; write the results to a file (-o FILE)")
    if output == "-" and request.retry_failed:
        raise ConfigError("--retry-failed: -o - keeps nothing to retry; give a file (-o FILE)")
    if request.force and request.retry_failed:
        raise ConfigError("--force answers all rows, --retry-failed only failed ones; keep one")
    if resolved.settings.prometheus is not None:
        check_inputs_are_safe([request.source], [Path(resolved.settings.prometheus)])
    console = make_console(quiet=request.quiet)
    if output == "-":
        return _run_to_stdout(request, resolved, make_engine, console)
    return _run_to_files(request, Path(output), resolved, make_engine, console)


def _run_to_stdout(
    request: RunRequest, resolved: Resolved, make_engine: MakeEngine, console: Console
) -> int:
    if sys.stdout is None:
        raise ConfigError("stdout is closed; write the results to a file (-o FILE)")
    folder = Path(tempfile.gettempdir())
    with (
        closing(_open(request, resolved.settings)) as reader,
        closing(Journal(folder, is_kept=False)) as journal,
    ):
        shard = Shard.of(resolved.settings.shard)
        stream = StdoutStream(journal, sys.stdout.buffer, resolved.settings.order, shard)
        job = Job(
            reader, journal, resolved, make_engine, console, "-", stream.on_record,
            constraint=request.constraint,
        )  # fmt: skip
        try:
            job.answer_rows()
        except OSError as error:
            if error.filename is None and (full := disk_full(error, folder, job.bytes_to_write())):
                full.add_note("rows that wait for their turn are kept there (TMPDIR)")
                raise full from error
            raise
        finally:
            stream.write_rest(job.pipeline.next_index)
    if job.is_finished:
        report = job.report("finished", job.exit_code)
    else:
        report = job.report("stopped", job.exit_code, f"by {job.stop_reason}")
    _show(report, job, console)
    return job.exit_code


def _show(report: Report, job: Job, console: Console) -> None:
    export_metrics(report, job.settings.prometheus, console.warn)
    console.summarize(report)


def _run_to_files(
    request: RunRequest, output: Path, resolved: Resolved, make_engine: MakeEngine, console: Console
) -> int:
    output = Shard.of(resolved.settings.shard).path(output)
    format = output_format(output)
    paths = OutputPaths(output)
    check_inputs_are_safe([request.source], paths.written)
    basis = _basis(request, resolved)
    with (
        closing(_open(request, resolved.settings)) as reader,
        PartialFolder(paths) as folder,
        ExitStack() as cleanup,
    ):
        if request.retry_failed and not is_begun(folder.path) and output.exists():
            if not paths.errors.exists() and not finished_report(paths).rows.errors:
                folder.remove()
                console.say(f"no row of {output} has failed; there is nothing to retry")
                return 0
            _reopen(request, folder, paths, resolved, basis)
        is_resumed = folder.begin(basis, force=request.force)
        journal = Journal(folder.path)
        cleanup.callback(journal.close)
        other_input = _other_input(folder.path, request.source)
        line = command_line(request.arguments, resolved)
        status = StatusFile(folder.path, command=line, source=request.source)
        job = Job(
            reader, journal, resolved, make_engine, console, str(output),
            constraint=request.constraint,
            publish=status.write,
            keep=lambda report: folder.keep_report(encode_report(report)),
            earlier=earlier_report(folder.earlier_report),
            retried=earlier_report(folder.retried_report),
        )  # fmt: skip
        if is_resumed:
            job.recover(retry_failed=request.retry_failed)
        if not request.force:
            job.pipeline.other_input = other_input
        console.say(f"{reader.name} → {output}")
        try:
            job.answer_rows()
            if job.is_finished:
                if not request.force:
                    _check_nothing_is_lost(job)
                status.write(job.snapshot(), phase="writing")
                report = _publish(job, folder, format)
        except Exception as error:
            if isinstance(error, OSError):
                error = disk_full(error, folder.path, job.bytes_to_write()) or error
            report = _keep(job, folder, "failed", exit_code(error), str(error))
            export_metrics(report, job.settings.prometheus, console.warn)
            _tell_what_is_kept(error, job, folder)
            raise error
        if not job.is_finished:
            report = _keep(job, folder, "stopped", job.exit_code, f"by {job.stop_reason}; {_AGAIN}")
    _show(report, job, console)
    if request.json:
        sys.stdout.buffer.write(encode_report(report) + b"\n")
        sys.stdout.buffer.flush()
    return job.exit_code


def _reopen(
    request: RunRequest, folder: PartialFolder, paths: OutputPaths, resolved: Resolved, basis: Basis
) -> None:
    """Take over a finished output, to answer its failed rows."""
    if not (os.path.isfile(request.source) or os.path.isdir(request.source)):
        raise ConfigError(
            "--retry-failed reads the input twice, which stdin and pipes do not allow: "
            f"give a file, or the rows of {paths.errors} as input"
        )
    with closing(_open(request, resolved.settings)) as same_input:
        reopen(folder, same_input, resolved, basis)


def _tell_what_is_kept(error: Exception, job: Job, folder: PartialFolder) -> None:
    if not job.total.results or isinstance(error, JournalGoneError):
        return
    count = job.journal.num_rows
    kept = "1 finished row is" if count == 1 else f"{count:,} finished rows are"
    # An error of the input must be fixed first; its message says how.
    again = "" if isinstance(error, InputError) else f", {_AGAIN}"
    error.add_note(f"{kept} kept in {folder.path}{again}")


def _open(request: RunRequest, settings: Settings) -> Reader:
    return open_reader(request.source, mapping=settings.map, max_row_bytes=settings.max_row_bytes)


def _basis(request: RunRequest, resolved: Resolved) -> Basis:
    settings = {"deepinfer": __version__, **resolved.answers()}
    folder = model_folder(resolved.settings)
    return Basis(
        settings | answers_depend_on(request.constraint),
        {} if folder is None else model_files(folder),
    )


def _keep(job: Job, folder: PartialFolder, status: str, exit_code: int, message: str) -> Report:
    """Keep the finished rows for the next part; without answers, keep nothing."""
    if job.pipeline.num_changed:  # changed rows have two records each
        job.count_again()
    report = job.report(status, exit_code, message)
    if job.total.results == 0:
        folder.remove()
    else:
        folder.keep_report(encode_report(report) + b"\n", is_last=True)
    return report


def _other_input(partial: Path, source: str) -> str | None:
    """The input of the previous part, if it exists and is not ``source``."""
    status = read_status(partial)
    if status is None or "-" in (status["input"], source):
        return None
    earlier = Path(status["folder"] or ".", status["input"])
    try:
        return None if earlier.samefile(source) else str(earlier)
    except OSError:  # deleted or renamed
        return None


def _check_nothing_is_lost(job: Job) -> None:
    """Raise InputError if answered rows are no longer in the input, or beyond the limit, so that
    truncating an input by mistake does not discard its answers."""
    read, limit = job.pipeline.num_rows, job.settings.limit
    missing = job.journal.num_rows - read
    if missing <= 0:
        return
    if limit is not None and job.pipeline.next_index >= limit:
        raise InputError(
            f"--limit {limit:,} ends before {missing:,} rows that were answered before: give a "
            "larger one, or --force to leave them out"
        )
    raise InputError(
        f"{job.reader.name} has {read:,} rows now, and {missing:,} more were answered before: give "
        "the whole input again, or --force to take it as it is"
    )


def _publish(job: Job, folder: PartialFolder, format: str) -> Report:
    num_rows = job.pipeline.num_rows
    journal, end = job.journal, job.pipeline.next_index
    if job.settings.order == "input":
        records = journal.in_input_order(end)
    else:
        records = map(numbered, journal.in_completion_order(end))
    if job.is_resumed:
        records = job.counting_again(records)
    num_written = write_files(records, folder.path, format)
    if not num_written == job.total.num_rows == num_rows:
        raise EngineError(
            f"{num_rows:,} rows were read but {num_written:,} are in the journal; "
            "run the same command again to answer the others"
        )
    report = job.report("finished", job.exit_code)
    has_errors = job.total.num_errors > 0
    publish(folder.path, folder.paths, encode_report(report), has_errors=has_errors)
    folder.remove()
    return report
