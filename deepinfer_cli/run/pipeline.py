"""``Pipeline``: reader -> engine -> journal, with a bounded number of rows in flight."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any

from deepinfer.errors import EngineError, InputError, RowError
from deepinfer.outputs import RequestOutput
from deepinfer_cli.input.rows import InputRow, encode_json, error_row, fields_with_id
from deepinfer_cli.input.sharding import Shard
from deepinfer_cli.output.journal import Journal, Record, digest
from deepinfer_cli.output.results import result_facts, result_row, without_carried
from deepinfer_cli.report.summary import Counts, Summary
from deepinfer_cli.settings.settings import Settings

from .stopping import StopSwitch, StopWaiting

Rows = Iterator[tuple[int, Mapping[str, Any]]]
Answer = Callable[[Rows], Iterator[RequestOutput]]


class Pipeline:
    """One pass over the input.  Every row it reads ends as one record of the journal.

    num_rows: rows of this shard that were read.  num_resumed: how many of them were finished
    before; num_changed: how many were finished before with other content.  next_index: one more
    than the number of the last row.  reached_end: every wanted row was read.  is_outside: waiting
    for the input, or for the reader of stdout.  total: all finished rows.  write_s: seconds spent
    on making and storing result rows.  other_input: the file from which finished rows were read, if
    it is another one; then a row with other content ends the run.
    """

    def __init__(
        self,
        rows: Iterator[InputRow],
        journal: Journal,
        total: Summary,
        settings: Settings,
        stop: StopSwitch,
        on_record: Callable[[Record], None],
    ) -> None:
        self.num_rows = 0
        self.num_resumed = 0
        self.num_changed = 0
        self.next_index = 0
        self.reached_end = False
        self.write_s = 0.0
        self.is_outside = False
        self.other_input: str | None = None
        self.total = total
        self._before = Counts()
        self._rows = rows
        self._journal = journal
        self._settings = settings
        self._missing_carry = set(settings.carry) - {"*"}
        self._shard = Shard.of(settings.shard)
        self._stop = stop
        self._on_record = on_record
        self._running: dict[int, InputRow] = {}
        self._failure: Exception | None = None
        self._first_error: str | None = None

    @property
    def session(self) -> Counts:
        """The counts of this part of the run only."""
        return self.total.counts() - self._before

    @property
    def missing_carry(self) -> list[str]:
        """Columns of ``--carry`` that no row had; [] if this part read no row."""
        is_known = self.num_rows > self.num_resumed and not self.num_resumed
        return sorted(self._missing_carry) if is_known else []

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_unrecorded(self) -> int:
        """Running rows without any record in the journal, not even for other content."""
        return sum(self._journal.finished(index) is None for index in self._running)

    def run(self, answer: Answer) -> None:
        """Read, answer and record rows until the input ends or the switch is set.

        ``answer`` is only called if a row needs the engine.
        Raises: InputError if the input is damaged (after running rows have finished) or has too
        many bad rows; EngineError if the engine loses a row.
        """
        self._before = self.total.counts()
        waiting = self._unfinished()
        first = next(waiting, None)
        if first is not None:
            for output in answer(chain([first], waiting)):
                began = time.perf_counter()
                self._finish(output)
                self.write_s += time.perf_counter() - began
        self._journal.sync()
        if self._failure is not None:
            raise self._failure
        if self._running:
            rows = ", ".join(str(row.line) for row in list(self._running.values())[:5])
            raise EngineError(
                f"the engine gave no answer for {len(self._running)} rows (lines {rows}); "
                "run the same command again to answer them"
            )
        self._check_errors(at_end=self.reached_end)

    def _unfinished(self) -> Rows:
        """The rows for the engine; bad ones are recorded here.

        A failure is raised only after the running rows have finished, so that they are not lost.
        """
        try:
            while not self._stop.is_set:
                row = self._read()
                if row is None:
                    self.reached_end = True
                    return
                if not self._shard.holds(row.index):
                    continue
                self.num_rows += 1
                finished = self._journal.finished(row.index)
                if finished == digest(row.raw):
                    self.num_resumed += 1
                    continue
                if finished is not None:
                    self._note_change(row)
                if row.error is not None:
                    self._record_error(row, row.error)
                else:
                    assert row.fields is not None
                    if self._missing_carry:
                        self._missing_carry -= row.fields.keys()
                    self._running[row.index] = row
                    yield row.index, fields_with_id(row)
                self._check_errors()
        except StopWaiting:
            return
        except (InputError, OSError) as error:
            self._failure = error

    def _note_change(self, row: InputRow) -> None:
        """Count a row that was finished with other content.  Raises: InputError."""
        if self.other_input is not None:
            raise InputError(
                f"line {row.line} differs from the row answered before, which came from "
                f"{self.other_input}: give that input, another output (-o), or --force to answer "
                "changed rows again"
            )
        self.num_changed += 1

    def _read(self) -> InputRow | None:
        """The next row of the input; None at its end, or at ``--limit``."""
        limit = self._settings.limit
        if limit is not None and self.next_index >= limit:
            return None
        with self._outside(), self._stop.waiting():
            row = next(self._rows, None)
        if row is not None:
            self.next_index = row.index + 1
        return row

    @contextmanager
    def _outside(self) -> Iterator[None]:
        self.is_outside = True
        try:
            yield
        finally:
            self.is_outside = False

    def _finish(self, output: RequestOutput) -> None:
        row = self._running.pop(output.row, None)
        if row is None:
            raise EngineError(f"the engine answered row {output.row} twice, or was not asked to")
        if output.error_kind is not None:
            self._record_error(row, RowError(output.error_kind, output.error or "no reason given"))
            return
        settings = self._settings
        notes = without_carried(output.notes, settings.carry)
        output = dataclasses.replace(output, notes=notes)
        try:
            result = result_row(
                output,
                row,
                carry=settings.carry,
                keep_token_ids=settings.keep_token_ids,
                timing=settings.timing,
            )
            payload = encode_json(result)
        except (ValueError, RecursionError) as error:
            # This can only be due to data of the row, such as a column nested 900 deep.
            self._record_error(row, RowError("unwritable_result", f"not writable as JSON: {error}"))
            return
        self._record(row, False, result_facts(output), payload)

    def _record_error(self, row: InputRow, error: RowError) -> None:
        if self._first_error is None:
            self._first_error = f"line {row.line}: {error}"
        self._record(row, True, {"error": error.kind}, error_row(row, error))

    def _record(self, row: InputRow, is_error: bool, facts: dict[str, Any], payload: bytes) -> None:
        record = Record(row.index, digest(row.raw), is_error, facts, payload)
        self.total.add(record)  # before the journal: a signal in between must not lose it
        self._journal.append(record)
        with self._outside():
            self._on_record(record)

    def _check_errors(self, *, at_end: bool = False) -> None:
        """A percentage applies only after a hundred rows, or at the end, to be meaningful."""
        limit = self._settings.max_errors
        errors = self.total.num_errors
        rows = max(self.num_rows, self.total.num_rows)
        if limit is None or errors <= (limit if isinstance(limit, int) else limit * rows):
            return
        if isinstance(limit, float) and rows < 100 and not at_end:
            return
        shown = f"{limit:,}" if isinstance(limit, int) else f"{limit:.1%}"
        first = f"; the first: {self._first_error}" if self._first_error else ""
        raise InputError(
            f"{errors:,} of {rows:,} rows failed, more than --max-errors={shown}{first}"
        )
