"""``Job``: one part of a run, from the engine, created when a row needs it, to the report."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

from deepinfer.engine.types import SamplingParams
from deepinfer.errors import DeepInferError
from deepinfer.outputs import RequestOutput
from deepinfer_cli.input.reader import Reader
from deepinfer_cli.input.sharding import Shard
from deepinfer_cli.output.journal import Journal, Record
from deepinfer_cli.report.build import Facts, build_report
from deepinfer_cli.report.pages.words import counted
from deepinfer_cli.report.parts import with_earlier
from deepinfer_cli.report.report import Report
from deepinfer_cli.report.summary import Summary
from deepinfer_cli.settings.constraint import answers_depend_on
from deepinfer_cli.settings.layers import Resolved
from deepinfer_cli.settings.settings import Settings

from .background import every
from .console import Console, Snapshot
from .part_meter import PartMeter, TellingEngine
from .pipeline import Pipeline, Rows
from .stopping import STOPPED_EARLY, StopNow, StopSwitch
from .watchdog import NO_PROGRESS, Watchdog

_ERROR_ROWS = 3
_PUBLISH_SECONDS = 1.0
_KEEP_SECONDS = 10.0
_STOPPED_BY = {
    129: "SIGHUP",
    130: "Ctrl-C",
    143: "SIGTERM",
    STOPPED_EARLY: "--time-limit",
    NO_PROGRESS: "the watchdog (--stall-limit)",
}


class Engine(TellingEngine, Protocol):
    """The part of ``OfflineEngine`` that a run uses."""

    def stream(
        self,
        rows: Rows,
        sampling_params: SamplingParams | None = None,
        *,
        raw: bool = False,
        thinking: Any = None,
        constraint: Mapping[str, Any] | None = None,
    ) -> Iterator[RequestOutput]: ...

    def close(self) -> None: ...


MakeEngine = Callable[[Settings], Engine]


class Job:
    """Answers the rows of ``reader`` that are not in ``journal`` yet, and makes the report."""

    def __init__(
        self,
        reader: Reader,
        journal: Journal,
        resolved: Resolved,
        make_engine: MakeEngine,
        console: Console,
        output: str,
        on_record: Callable[[Record], None] = lambda record: None,
        *,
        constraint: Mapping[str, Any] | None = None,
        publish: Callable[[Snapshot], None] | None = None,
        keep: Callable[[Report], None] | None = None,
        earlier: Report | None = None,
        retried: Report | None = None,
    ) -> None:
        """keep: called with the report so far from time to time, in case this part is killed.
        earlier: the report of the parts before this one.  retried: the report of the finished run
        whose failed rows are answered again."""
        self.reader = reader
        self.journal = journal
        self.resolved = resolved
        self.settings = resolved.settings
        self.total = Summary()
        self.is_resumed = False
        self._num_recovered = 0
        self._earlier, self._retried = earlier, retried
        self._stop = StopSwitch(self.settings.time_limit)
        self.meter = PartMeter(reader.rows)
        self._shard = Shard.of(self.settings.shard)
        self.pipeline = Pipeline(
            iter(self.meter.input), journal, self.total, self.settings, self._stop, self._recorded
        )
        self._on_record = on_record
        self._make_engine = make_engine
        self._console = console
        self._output = output
        self._constraint = constraint
        self._publish = publish
        self._keep = keep
        self._kept_at = time.monotonic()
        self._kinds_told: set[str] = set()
        self._engine: Engine | None = None

    def recover(self, *, retry_failed: bool = False) -> None:
        """Take over the finished rows of earlier parts; with ``retry_failed``, not errors."""
        self.is_resumed = True
        failed = set()
        for record in self.journal.recover():
            if retry_failed and record.is_error:
                failed.add(record.index)
                self.journal.forget(record.index)
            else:
                failed.discard(record.index)
                self.total.add(record)
        self._add_untold()
        if self.total.num_rows != self.journal.num_rows:  # some rows have several records
            self.count_again()
            self.pipeline.total = self.total
        self._num_recovered = self.journal.num_rows
        if self.journal.num_rows:
            self._console.say(f"resuming after {counted(self.journal.num_rows, 'finished row')}")
        if failed:
            self._console.say(f"failed rows to answer again: {len(failed):,}")

    def counting_again(self, records: Iterable[Record]) -> Iterator[Record]:
        """``records``, from which the totals are computed again: the journal may have records of
        rows that have changed or are no longer wanted."""
        self.total = Summary()
        for record in records:
            self.total.add(record)
            yield record
        self._add_untold()

    def count_again(self) -> None:
        """Compute the totals again from the last record of each row."""
        for _ in self.counting_again(self.journal.in_completion_order()):
            pass

    def _add_untold(self) -> None:
        if self._retried is not None:
            self.total.add_untold(self._retried)

    def answer_rows(self) -> None:
        """Answer rows until the input ends, or until the run ends early."""
        signals = self._stop.on_signals(self._console.warn, lambda: self._engine is not None)
        try:
            with signals, self._watchdog():
                try:
                    with self._console.watch(self.snapshot), self._told_to_other_shells():
                        self.pipeline.run(self._answer)
                finally:
                    self._end()
            self.keep_report()
        except StopNow as stop:
            self._stop.exit_code = stop.exit_code
        for column in self.pipeline.missing_carry:
            self._console.warn(f"--carry {column}: no row has such a column")
        if changed := self.pipeline.num_changed:
            self._console.warn(
                f"rows of the input that changed after they were answered: {changed:,}, "
                "they were answered again"
            )

    def _watchdog(self) -> AbstractContextManager[None]:
        limit_s = self.settings.stall_limit
        if not limit_s:
            return nullcontext()
        return Watchdog(
            limit_s,
            self._progress,
            stop=lambda: self._stop.force(NO_PROGRESS),
            save=self.journal.sync,
        ).watch()

    def bytes_to_write(self) -> int | None:
        """Estimated bytes of the rest of the run and the final files."""
        total, done = self._expected_rows(), self.total.num_rows
        if not total or not done:
            return None
        per_row = self.journal.num_bytes / done
        return round(per_row * (max(0, total - done) + total))

    def _progress(self) -> object:
        """A value that changes as long as the engine makes progress; None while it is not
        needed."""
        engine = self._engine
        if engine is None or self.meter.is_over or self.pipeline.is_outside:
            return None
        try:
            return self.pipeline.session.rows, engine.stats().num_steps
        except DeepInferError:  # being closed
            return None

    @contextmanager
    def _told_to_other_shells(self) -> Iterator[None]:
        def publish() -> None:
            if self._publish is not None:
                self._publish(self.snapshot())

        publish()
        with every(lambda: _PUBLISH_SECONDS, publish):
            yield
        publish()

    def _end(self) -> None:
        try:
            self.meter.end()
        finally:
            if self._engine is not None:
                self._engine.close()

    @property
    def is_finished(self) -> bool:
        """Whether every wanted row was read and has a record."""
        return self.pipeline.reached_end and self.pipeline.num_running == 0

    @property
    def exit_code(self) -> int:
        if not self.is_finished:
            return self._stop.exit_code or 1
        return _ERROR_ROWS if self.total.num_errors else 0

    @property
    def stop_reason(self) -> str:
        return _STOPPED_BY.get(self.exit_code, "a signal")

    def _recorded(self, record: Record) -> None:
        self.meter.timeline.add(record)
        self._on_record(record)
        if record.is_error:
            self._tell_once(record)
        if time.monotonic() - self._kept_at >= _KEEP_SECONDS:
            self.keep_report()

    def _tell_once(self, record: Record) -> None:
        """Print the first error of each kind; the errors file has all."""
        kind = record.facts["error"]
        if kind not in self._kinds_told:
            self._kinds_told.add(kind)
            row = json.loads(record.payload)
            self._console.warn(f"{kind}, first in line {row['line']}: {row['error']['message']}")

    def keep_report(self) -> None:
        """Save the report so far, in case this process is killed."""
        if self._keep is not None and self._engine is not None:
            self._keep(self.report("running", 0))
        self._kept_at = time.monotonic()

    def report(self, status: str, exit_code: int, message: str | None = None) -> Report:
        """The report of the run so far, including its earlier parts."""
        num_read, num_resumed = self._rows_so_far(is_finished=status == "finished")
        part = build_report(
            Facts(
                status=status,
                exit_code=exit_code,
                message=message,
                input_name=self.reader.name,
                input_format=self.reader.format,
                output=self._output,
                num_rows=num_read,
                num_resumed=num_resumed,
                total=self.total,
                session=self.pipeline.session,
                constraint_digest=answers_depend_on(self._constraint).get("constraint"),
                resolved=self.resolved,
                measured=self.meter.measured(self.pipeline.write_s),
            )
        )
        return with_earlier(self._earlier, part)

    def _rows_so_far(self, *, is_finished: bool) -> tuple[int, int]:
        """Number of rows read, and how many of them were finished before this part.  A part that
        ends early may not have reached all rows that earlier parts have read."""
        pipeline = self.pipeline
        if is_finished or not self.is_resumed:
            return pipeline.num_rows, pipeline.num_resumed
        known = self.journal.num_rows + pipeline.num_unrecorded
        return max(known, pipeline.num_rows), self._num_recovered - pipeline.num_changed

    def _answer(self, rows: Iterator[tuple[int, Mapping[str, Any]]]) -> Iterator[RequestOutput]:
        settings = self.settings
        if settings.model is None:
            self._console.say("answering with the embedded model (see --model)")
        else:
            self._console.say(f"loading {settings.model}")
        engine = self._make_engine(settings)
        self._engine = engine
        for name, note in engine.notes.items():
            self._console.warn(f"{name}: {note}")
        stats = engine.stats()
        if stats.num_graphs:
            sizes = f"{stats.num_graphs} sizes of decode steps"
            self._console.say(f"captured {sizes} as CUDA graphs in {stats.capture_s:.1f} s")
        self.meter.engine_is_ready(engine)
        return engine.stream(
            rows,
            settings.sampling(),
            raw=settings.raw,
            thinking=settings.thinking,
            constraint=self._constraint,
        )

    def snapshot(self) -> Snapshot:
        """The progress of this part of the run.  May be called from any thread."""
        pipeline, session = self.pipeline, self.pipeline.session
        elapsed = self.meter.answering_s
        finished = pipeline.num_rows - pipeline.num_running
        total, is_stopping = self._expected_rows(), self._stop.exit_code is not None
        eta = None
        # Error rows take no time, so they do not count for the estimate.
        if total is not None and session.results and not is_stopping:
            eta = elapsed / session.rows * max(0, total - finished)
        return Snapshot(
            rows=finished,
            total_rows=total,
            is_estimate=self.reader.num_rows is None and not pipeline.reached_end,
            running=0 if self._engine is None else pipeline.num_running,
            errors=self.total.num_errors,
            tokens_per_s=self._tokens_so_far() / max(elapsed, 1e-9),
            acceptance=self.total.acceptance,
            elapsed_s=self.meter.elapsed_s,
            eta_s=eta,
            rows_per_s=session.rows / max(elapsed, 1e-9),
            is_stopping=is_stopping,
        )

    def _tokens_so_far(self) -> int:
        """Answer tokens of this part, including unfinished rows if the engine reports them."""
        engine = None if self.meter.is_over else self._engine
        decoded = 0 if engine is None else engine.stats().num_decode_tokens
        return max(self.pipeline.session.completion_tokens, decoded)

    def _expected_rows(self) -> int | None:
        """Number of rows to answer: known, or estimated from the share read so far."""
        if self.pipeline.reached_end:
            return self.pipeline.num_rows
        read, limit = self.pipeline.next_index, self.settings.limit
        total, share = self.reader.num_rows, self.reader.share_read()
        if total is None and share:
            total = max(read, round(read / share))
        if total is None:
            return None
        return self._shard.num_rows(total if limit is None else min(limit, total))
