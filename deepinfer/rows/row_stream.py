"""``RowStream``: runs rows through an engine, with a bounded number of rows in flight."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Protocol

from deepinfer.engine.types import Completion, Request, SamplingParams
from deepinfer.errors import EngineError, RowError
from deepinfer.outputs import RequestOutput
from deepinfer.recipes.constraints.compiler import CompiledConstraint
from deepinfer.recipes.constraints.spec import ConstraintSpec
from deepinfer.recipes.parsing import AnswerParser
from deepinfer.recipes.rows import row_id
from deepinfer.recipes.tokenizer import Tokenizer
from deepinfer.recipes.types import Thinking

from .assemble import OutputAssembler, RowInFlight, error_output
from .constraint_queue import ConstraintQueue
from .prepare import RowPreparer

# Rows in advance of the running ones give the scheduler a choice and keep the device busy.
ROWS_AHEAD = 2

_END = object()


class StepEngine(Protocol):
    """The part of ``LLMEngine`` that is used here."""

    def add_request(self, request: Request) -> None: ...
    def step(self) -> list[Completion]: ...
    def abort(self, request_id: str) -> bool: ...


class RowStream:
    """Feeds one engine.  One ``run`` at a time: it owns every request in the engine."""

    def __init__(
        self,
        engine: StepEngine,
        tokenizer: Tokenizer,
        *,
        max_model_len: int,
        vocab_size: int,
        max_in_flight: int,
        seed: int,
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._preparer = RowPreparer(
            tokenizer, max_model_len=max_model_len, vocab_size=vocab_size, seed=seed
        )
        self._assembler = OutputAssembler(AnswerParser(tokenizer), tokenizer.eos_id)
        self._max_in_flight = max_in_flight
        self._num_started = 0
        self._constraints = ConstraintQueue(tokenizer, vocab_size)
        self._in_flight: dict[str, tuple[RowInFlight, int]] = {}
        self._is_running = False
        self._is_closed = False

    def run(
        self,
        rows: Iterable[tuple[int, Any, SamplingParams] | None],
        *,
        raw: bool = False,
        thinking: Thinking | None = None,
        constraint: ConstraintSpec | None = None,
    ) -> Iterator[RequestOutput]:
        """Answer ``(number, row, default sampling)`` triples, in order of completion.

        Rows are pulled only while fewer than ``max_in_flight`` samples are in the engine or waiting
        for their constraint.  Closing the iterator aborts them.  A None among the rows means that
        there is none at the moment.
        Raises: EngineError if another run is active, ConfigError for an invalid ``constraint``.
        """
        if self._is_running:
            raise EngineError(
                "another stream of this engine is still open; read it to its end or close it first"
            )
        self._is_running = True
        source: Iterator[Any] | None = iter(rows)
        try:
            if constraint is not None:
                self._constraints.check(constraint)
            while source is not None or self._in_flight or self._constraints:
                while source is not None and self._has_room():
                    triple: Any = next(source, _END)
                    if triple is _END:
                        source = None
                    if triple is None or triple is _END:
                        break
                    rejected = self._start(
                        *triple, raw=raw, thinking=thinking, constraint=constraint
                    )
                    if rejected is not None:
                        yield rejected
                        self._check_open()
                for output in self._start_compiled():
                    yield output
                    self._check_open()
                if self._in_flight:
                    for output in self._finished(self._engine.step()):
                        yield output
                        self._check_open()
        finally:
            self._abort_all()
            self._is_running = False

    def close(self) -> None:
        """Abort everything; an open run then raises EngineError."""
        self._is_closed = True
        self._abort_all()
        self._constraints.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise EngineError("the engine was closed while this stream was open")

    def _has_room(self) -> bool:
        return len(self._in_flight) + len(self._constraints) < self._max_in_flight

    def _abort_all(self) -> None:
        self._constraints.clear()
        for request_id in self._in_flight:
            self._engine.abort(request_id)
        self._in_flight.clear()

    def _start(
        self,
        number: int,
        row: Any,
        defaults: SamplingParams,
        *,
        raw: bool,
        thinking: Thinking | None,
        constraint: ConstraintSpec | None,
    ) -> RequestOutput | None:
        """Submit a row to the engine or to the constraint queue, or return its error."""
        try:
            in_flight = self._preparer.prepare(
                number, row, defaults, raw=raw, thinking=thinking, constraint=constraint
            )
        except RowError as error:
            return error_output(number, row_id(row, number), error.kind, str(error))
        spec = in_flight.encoded.constraint
        if spec is None:
            self._submit(in_flight, None)
        else:
            self._constraints.put(in_flight, spec)
        return None

    def _start_compiled(self) -> Iterator[RequestOutput]:
        """Submit rows whose constraint is ready; yields the errors of those that failed.

        Waits for a constraint only if the engine has nothing else to do.
        """
        for row, compiled in self._constraints.take(patient=not self._in_flight):
            if isinstance(compiled, RowError):
                encoded = row.encoded
                yield error_output(row.number, encoded.row_id, compiled.kind, str(compiled))
            else:
                self._submit(row, compiled)

    def _submit(self, row: RowInFlight, compiled: CompiledConstraint | None) -> None:
        is_reasoning = row.encoded.answer_format.starts_in_reasoning
        start_after = self._tokenizer.think_end_id if is_reasoning else None
        sampling = row.sampling if row.sampling.n == 1 else replace(row.sampling, n=1)
        self._num_started += 1
        for index, seed in enumerate(row.seeds):
            request_id = f"{self._num_started}.{index}"
            self._in_flight[request_id] = (row, index)
            self._engine.add_request(
                Request(
                    request_id=request_id,
                    prompt_token_ids=row.encoded.prompt_token_ids,
                    sampling=sampling,
                    seed=seed,
                    stop_checker=row.stop_checkers[index],
                    constraint=None
                    if compiled is None
                    else compiled.new_matcher(start_after=start_after),
                )
            )

    def _finished(self, completions: Iterable[Completion]) -> Iterator[RequestOutput]:
        for completion in completions:
            row, index = self._in_flight.pop(completion.request_id)
            row.completions[index] = completion
            if row.is_finished:
                yield self._assembler.output(row)
