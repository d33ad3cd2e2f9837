"""One part of a run: the engine that is made when a row needs it, the clock and the counts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

from deepinfer.engine.types import EngineStats, SamplingParams
from deepinfer.engine_facts import EngineFacts
from deepinfer.errors import DeepInferError
from deepinfer.nvml import GpuEnergy
from deepinfer.outputs import RequestOutput
from deepinfer_cli.input.input_meter import InputMeter
from deepinfer_cli.input.reader import Reader
from deepinfer_cli.input.sharding import Shard
from deepinfer_cli.output.journal import Journal, Record
from deepinfer_cli.report.build import Facts, build_report
from deepinfer_cli.report.parts import with_earlier
from deepinfer_cli.report.report import InputFacts, Report
from deepinfer_cli.report.summary import Summary
from deepinfer_cli.report.timeline import Timeline
from deepinfer_cli.settings.layers import Resolved
from deepinfer_cli.settings.settings import Settings

from .background import every
from .console import Console, Snapshot
from .energy import EnergyMeter
from .pipeline import Pipeline, Rows
from .stopping import STOPPED_EARLY, StopNow, StopSwitch
from .watchdog import NO_PROGRESS, Watchdog

_ERROR_ROWS = 3
_PUBLISH_SECONDS = 1.0
_STOPPED_BY = {
    129: "SIGHUP",
    130: "Ctrl-C",
    143: "SIGTERM",
    STOPPED_EARLY: "--time-limit",
    NO_PROGRESS: "the watchdog (--stall-limit)",
}


class Engine(Protocol):
    """What a run needs of ``OfflineEngine``."""

    def stream(
        self,
        rows: Rows,
        sampling_params: SamplingParams | None = None,
        *,
        raw: bool = False,
        thinking: Any = None,
        constraint: Mapping[str, Any] | None = None,
    ) -> Iterator[RequestOutput]: ...

    def stats(self) -> EngineStats: ...

    @property
    def notes(self) -> Mapping[str, str]: ...

    def facts(self) -> EngineFacts: ...

    def close(self) -> None: ...


MakeEngine = Callable[[Settings], Engine]


class Job:
    """Answers the rows of ``reader`` that ``journal`` does not hold yet, and tells how it went."""

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
        earlier: Report | None = None,
        retried: Report | None = None,
    ) -> None:
        """earlier: the report of the parts before this one.  retried: that of the finished run
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
        self._timeline = Timeline()
        self._input = InputMeter(reader.rows)
        self._shard = Shard.of(self.settings.shard)
        self.pipeline = Pipeline(
            iter(self._input), journal, self.total, self.settings, self._stop, self._recorded
        )
        self._on_record = on_record
        self._make_engine = make_engine
        self._console = console
        self._output = output
        self._constraint = constraint
        self._publish = publish
        self._engine: Engine | None = None
        self._stats: EngineStats | None = None
        self._engine_notes: dict[str, str] = {}
        self._facts: EngineFacts | None = None
        self._began_at = time.time()
        self._began = self._loaded = time.monotonic()
        self._cpu_at_load = time.process_time()
        self._energy, self._gpu_energy = EnergyMeter(), GpuEnergy()
        self._ended: float | None = None
        self._cpu_s = 0.0

    def recover(self, *, retry_failed: bool = False) -> None:
        """Take over the finished rows of an earlier part; with ``retry_failed`` not its errors."""
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
        self._num_recovered = self.journal.num_rows
        if self.journal.num_rows:
            self._console.say(f"continuing after {self.journal.num_rows:,} finished rows")
        if failed:
            self._console.say(f"failed rows to answer again: {len(failed):,}")

    def counting_again(self, records: Iterable[Record]) -> Iterator[Record]:
        """``records``, of which the totals will be made: the journal may also hold rows that
        changed since, or are no longer wanted."""
        self.total = Summary()
        for record in records:
            self.total.add(record)
            yield record
        self._add_untold()

    def _add_untold(self) -> None:
        if self._retried is not None:
            self.total.add_untold(self._retried)

    def answer_rows(self) -> None:
        """Answer until the input ends or something ends the run early."""
        signals = self._stop.on_signals(self._console.warn, lambda: self._engine is not None)
        try:
            with signals, self._watchdog():
                try:
                    with self._console.watch(self.snapshot), self._told_to_other_shells():
                        self.pipeline.run(self._answer)
                finally:
                    self._ended = time.monotonic()
                    self._cpu_s = time.process_time() - self._cpu_at_load
                    self._close_engine()
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
        """What the rest of the run and the final files will take, by the rows so far."""
        total, done = self._expected_rows(), self.total.num_rows
        if not total or not done:
            return None
        per_row = self.journal.num_bytes / done
        return round(per_row * (max(0, total - done) + total))

    def _progress(self) -> object:
        """What changes as long as the engine gets on; None while it is not its turn."""
        engine, is_over = self._engine, self._ended is not None
        if engine is None or is_over or self.pipeline.is_outside:
            return None
        try:
            return self.pipeline.session.rows, engine.stats().num_steps
        except DeepInferError:  # closed at this moment
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

    def _close_engine(self) -> None:
        if self._engine is not None:
            try:
                self._stats = self._engine.stats()
                self._engine_notes = dict(self._engine.notes)
            finally:
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
    def stop_reason(self) -> str:
        return _STOPPED_BY.get(self.exit_code, "a signal")

    def _recorded(self, record: Record) -> None:
        self._timeline.add(record)
        self._on_record(record)

    def report(self, status: str, exit_code: int, message: str | None = None) -> Report:
        now = time.monotonic()
        ended = self._ended or now
        num_read, num_resumed = self._rows_so_far()
        part = build_report(
            Facts(
                status=status,
                exit_code=exit_code,
                message=message,
                began=self._began_at,
                ended=self._began_at + now - self._began,  # somebody may have set the clock since
                input=InputFacts(
                    name=self.reader.name,
                    format=self.reader.format,
                    digest=self._input.digest(),
                ),
                output=self._output,
                num_rows=num_read,
                num_resumed=num_resumed,
                total=self.total,
                session=self.pipeline.session,
                load_s=self._loaded - self._began,
                answer_s=ended - self._loaded,
                read_s=self._input.read_s,
                write_s=self.pipeline.write_s,
                cpu_s=self._cpu_s,
                energy_j=self._energy.joules(),
                gpu_energy_j=self._gpu_energy.joules(),
                resolved=self.resolved,
                stats=self._stats,
                engine_notes=self._engine_notes,
                engine=self._facts,
                timeline=self._timeline.report(),
            )
        )
        return with_earlier(self._earlier, part)

    def _rows_so_far(self) -> tuple[int, int]:
        """How many rows were read, and how many of them were finished before this part.  One that
        ends early may not have come to all that earlier parts have read."""
        pipeline = self.pipeline
        if self.is_finished or not self.is_resumed:
            return pipeline.num_rows, pipeline.num_resumed
        known = self.journal.num_rows + pipeline.num_unrecorded
        return max(known, pipeline.num_rows), self._num_recovered - pipeline.num_changed

    def _answer(self, rows: Iterator[tuple[int, Mapping[str, Any]]]) -> Iterator[RequestOutput]:
        settings = self.settings
        if settings.model is None:
            self._console.say("answering with the small built-in model (see --model)")
        else:
            self._console.say(f"loading {settings.model}")
        engine = self._make_engine(settings)
        self._engine = engine
        self._engine_notes = dict(engine.notes)
        self._facts = engine.facts()
        for name, note in self._engine_notes.items():
            self._console.warn(f"{name}: {note}")
        stats = engine.stats()
        if stats.num_graphs:
            sizes = f"{stats.num_graphs} sizes of decode steps"
            self._console.say(f"captured {sizes} as CUDA graphs in {stats.capture_s:.1f} s")
        self._loaded = time.monotonic()
        self._cpu_at_load = time.process_time()
        self._timeline.start()
        return engine.stream(
            rows,
            settings.sampling(),
            raw=settings.raw,
            thinking=settings.thinking,
            constraint=self._constraint,
        )

    def snapshot(self) -> Snapshot:
        """How far this part of the run is.  From any thread."""
        pipeline, session = self.pipeline, self.pipeline.session
        elapsed = time.monotonic() - self._loaded
        finished = pipeline.num_rows - pipeline.num_running
        total = self._expected_rows()
        eta = None
        if total is not None and session.results:  # error rows take no time and foretell none
            eta = elapsed / session.rows * max(0, total - finished)
        return Snapshot(
            rows=finished,
            total_rows=total,
            is_estimate=self.reader.num_rows is None and not pipeline.reached_end,
            running=0 if self._engine is None else pipeline.num_running,
            errors=self.total.num_errors,
            tokens_per_s=self._tokens_so_far() / max(elapsed, 1e-9),
            acceptance=self.total.acceptance,
            elapsed_s=time.monotonic() - self._began,
            eta_s=eta,
            rows_per_s=session.rows / max(elapsed, 1e-9),
        )

    def _tokens_so_far(self) -> int:
        """Answer tokens of this part, those of unfinished rows too where the engine tells."""
        engine = self._engine if self._ended is None else None
        decoded = 0 if engine is None else engine.stats().num_decode_tokens
        return max(self.pipeline.session.completion_tokens, decoded)

    def _expected_rows(self) -> int | None:
        """How many rows there are to answer: known, or estimated from the share read so far."""
        if self.pipeline.reached_end:
            return self.pipeline.num_rows
        read, limit = self.pipeline.next_index, self.settings.limit
        total, share = self.reader.num_rows, self.reader.share_read()
        if total is None and share:
            total = max(read, round(read / share))
        if total is None:
            return None
        return self._shard.num_rows(total if limit is None else min(limit, total))
