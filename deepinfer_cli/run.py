"""``deepinfer run``: a prompt file in; answers, error rows and a report out."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from deepinfer.engine.types import EngineStats, SamplingParams
from deepinfer.errors import ConfigError, DeepInferError, EngineError
from deepinfer.outputs import RequestOutput

from .console import Console, Snapshot, make_console
from .journal import Journal, Record
from .partial import OutputPaths, PartialFolder
from .pipeline import Pipeline, Rows
from .reader import Reader, open_reader
from .report import Facts, build_report, encode_report
from .settings import Resolved, Settings
from .stopping import STOPPED_EARLY, StopNow, StopSwitch
from .summary import Summary
from .writer import StdoutStream, output_format, publish, write_files

_ENDINGS_OF_JSONL = (".gz", ".zst", ".jsonl", ".ndjson", ".json", ".csv")
_ERROR_ROWS = 3
_SIGNAL_NAMES = {129: "SIGHUP", 130: "Ctrl-C", 143: "SIGTERM", STOPPED_EARLY: "--time-limit"}


class Engine(Protocol):
    """What a run needs of ``OfflineEngine``."""

    def stream(
        self,
        rows: Rows,
        sampling_params: SamplingParams | None = None,
        *,
        raw: bool = False,
        thinking: Any = None,
    ) -> Iterator[RequestOutput]: ...

    def stats(self) -> EngineStats: ...

    def close(self) -> None: ...


MakeEngine = Callable[[Settings], Engine]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """What the command line says beyond settings.  ``output`` None: beside the input."""

    source: str
    output: str | None = None
    force: bool = False
    json: bool = False
    quiet: bool = False


def run(request: RunRequest, resolved: Resolved, make_engine: MakeEngine) -> int:
    """Answer every row of the input; return the exit code.  Raises: DeepInferError, OSError."""
    output = request.output or default_output(request.source)
    if output == "-" and request.json:
        raise ConfigError("--json and -o - both want stdout; give the results a file (-o FILE)")
    console = make_console(quiet=request.quiet)
    if output == "-":
        return _run_to_stdout(request, resolved, make_engine, console)
    return _run_to_files(request, Path(output), resolved, make_engine, console)


def default_output(source: str) -> str:
    """``prompts.jsonl`` -> ``prompts.out.jsonl``, Parquet -> ``.out.parquet``, stdin -> stdout."""
    if source == "-":
        return "-"
    path = Path(source)
    if path.suffix == ".parquet":
        return str(path.with_suffix(".out.parquet"))
    while path.suffix in _ENDINGS_OF_JSONL:
        path = path.with_suffix("")
    return str(path.with_name(path.name + ".out.jsonl"))


def _run_to_stdout(
    request: RunRequest, resolved: Resolved, make_engine: MakeEngine, console: Console
) -> int:
    reader = _open(request, resolved.settings)
    with tempfile.TemporaryDirectory(prefix="deepinfer-") as folder:
        journal = Journal(Path(folder))
        stream = StdoutStream(journal, sys.stdout.buffer, resolved.settings.order)
        job = _Job(reader, journal, resolved, make_engine, console, "-", stream.on_record)
        try:
            job.answer_rows()
            exit_code = job.exit_code
            console.summarize(job.report("finished" if job.is_finished else "stopped", exit_code))
        finally:
            journal.close()
    return exit_code


def _run_to_files(
    request: RunRequest, output: Path, resolved: Resolved, make_engine: MakeEngine, console: Console
) -> int:
    format = output_format(output)
    paths = OutputPaths(output)
    _check_input_is_safe(request.source, paths)
    reader = _open(request, resolved.settings)
    with PartialFolder(paths) as folder, ExitStack() as cleanup:
        is_resumed = folder.begin(resolved.answers(), force=request.force)
        journal = Journal(folder.path)
        cleanup.callback(journal.close)
        job = _Job(reader, journal, resolved, make_engine, console, str(output))
        if is_resumed:
            job.recover()
        console.say(f"{reader.name} → {output}")
        try:
            job.answer_rows()
        except (DeepInferError, OSError) as error:
            _keep(job, folder, "failed", getattr(error, "exit_code", 1), str(error))
            raise
        if not job.is_finished:
            report = _keep(job, folder, "stopped", job.exit_code, job.stop_message)
        else:
            report = _publish(job, folder, format)
    console.summarize(report)
    if request.json:
        sys.stdout.buffer.write(encode_report(report) + b"\n")
        sys.stdout.buffer.flush()
    return job.exit_code


def _open(request: RunRequest, settings: Settings) -> Reader:
    return open_reader(request.source, mapping=settings.map, max_row_bytes=settings.max_row_bytes)


def _check_input_is_safe(source: str, paths: OutputPaths) -> None:
    for path in (paths.results, paths.errors, paths.report):
        if source != "-" and path.exists() and os.path.exists(source) and path.samefile(source):
            raise ConfigError(f"{source} is the input, and {path} would replace it; use another -o")


def _keep(
    job: _Job, folder: PartialFolder, status: str, exit_code: int, message: str
) -> dict[str, Any]:
    """Leave the finished rows for the next part; if there are no answers, leave nothing."""
    report = job.report(status, exit_code, message)
    if job.total.results == 0:
        folder.remove()
    else:
        (folder.path / "report.json").write_bytes(encode_report(report) + b"\n")
    return report


def _publish(job: _Job, folder: PartialFolder, format: str) -> dict[str, Any]:
    num_rows = job.pipeline.num_rows
    in_order = job.settings.order == "input"
    journal = job.journal
    records = journal.in_input_order if in_order else journal.in_completion_order
    job.total = write_files(records(num_rows), folder.path, format)
    if job.total.num_rows != num_rows:
        raise EngineError(
            f"{num_rows:,} rows were read but {job.total.num_rows:,} are in the journal; "
            "run the same command again to answer the others"
        )
    report = job.report("finished", job.exit_code)
    has_errors = job.total.num_errors > 0
    publish(folder.path, folder.paths, encode_report(report), has_errors=has_errors)
    folder.remove()
    return report


class _Job:
    """One part of a run: the engine it makes when a row needs one, its clock and its counts."""

    def __init__(
        self,
        reader: Reader,
        journal: Journal,
        resolved: Resolved,
        make_engine: MakeEngine,
        console: Console,
        output: str,
        on_record: Callable[[Record], None] = lambda record: None,
    ) -> None:
        self.reader = reader
        self.journal = journal
        self.resolved = resolved
        self.settings = resolved.settings
        self.total = Summary()
        self._stop = StopSwitch(self.settings.time_limit)
        self.pipeline = Pipeline(
            reader.rows, journal, self.total, self.settings, self._stop, on_record
        )
        self._make_engine = make_engine
        self._console = console
        self._output = output
        self._engine: Engine | None = None
        self._stats: EngineStats | None = None
        self._began = self._loaded = time.monotonic()
        self._ended: float | None = None

    def recover(self) -> None:
        """Take over the finished rows of an earlier part."""
        for record in self.journal.recover():
            self.total.add(record)
        if self.total.num_rows:
            self._console.say(f"continuing after {self.total.num_rows:,} finished rows")

    def answer_rows(self) -> None:
        try:
            with self._stop.on_signals(self._console.warn), self._console.watch(self._snapshot):
                self.pipeline.run(self._answer)
        except StopNow as stop:
            self._stop.exit_code = stop.exit_code
        finally:
            self._ended = time.monotonic()
            if self._engine is not None:
                self._stats = self._engine.stats()
                self._engine.close()

    @property
    def is_finished(self) -> bool:
        """Every wanted row was read and has its record."""
        return self.pipeline.reached_end and self.pipeline.num_running == 0

    @property
    def exit_code(self) -> int:
        if not self.is_finished:
            return self._stop.exit_code or 1
        return _ERROR_ROWS if self.total.num_errors else 0

    @property
    def stop_message(self) -> str:
        name = _SIGNAL_NAMES.get(self.exit_code, "a signal")
        return f"by {name}; run the same command again to continue"

    def report(self, status: str, exit_code: int, message: str | None = None) -> dict[str, Any]:
        ended = self._ended or time.monotonic()
        return build_report(
            Facts(
                status=status,
                exit_code=exit_code,
                message=message,
                input_name=self.reader.name,
                input_format=self.reader.format,
                output=self._output,
                num_rows=self.pipeline.num_rows,
                num_resumed=self.pipeline.num_resumed,
                total=self.total,
                session=self.pipeline.session,
                load_s=self._loaded - self._began,
                answer_s=ended - self._loaded,
                resolved=self.resolved,
                stats=self._stats,
            )
        )

    def _answer(self, rows: Iterator[tuple[int, Mapping[str, Any]]]) -> Iterator[RequestOutput]:
        settings = self.settings
        if settings.model is None:
            self._console.say("answering with the small model inside the package (see --model)")
        else:
            self._console.say(f"loading {settings.model}")
        self._engine = self._make_engine(settings)
        self._loaded = time.monotonic()
        return self._engine.stream(
            rows, settings.sampling(), raw=settings.raw, thinking=settings.thinking
        )

    def _snapshot(self) -> Snapshot:
        pipeline, session = self.pipeline, self.pipeline.session
        elapsed = time.monotonic() - self._loaded
        finished = pipeline.num_rows - pipeline.num_running
        total = self._expected_rows()
        eta = None
        if total is not None and session.num_rows:
            eta = elapsed / session.num_rows * max(0, total - finished)
        return Snapshot(
            rows=finished,
            total_rows=total,
            errors=self.total.num_errors,
            tokens_per_s=session.tokens["completion_tokens"] / max(elapsed, 1e-9),
            acceptance=session.acceptance,
            elapsed_s=time.monotonic() - self._began,
            eta_s=eta,
        )

    def _expected_rows(self) -> int | None:
        """The number of rows of the input: known, or estimated from the share read so far."""
        total = self.reader.num_rows
        share = self.reader.share_read()
        if total is None and share:
            total = max(self.pipeline.num_rows, round(self.pipeline.num_rows / share))
        limit = self.settings.limit
        return total if limit is None else min(limit, total or limit)
