"""``rehearse``: run a few rows for a bounded time, and note how long every step takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deepinfer.engine.engine import LLMEngine
from deepinfer.engine.types import Completion, Request, SamplingParams
from deepinfer.recipes.types import Thinking

from .arguments import EngineArguments
from .engine.execution.decode import DecodeResult
from .engine.limits.step_times import StepTimes, fit_step_times
from .engine.speculation.step_profile import step_clock
from .loading import load_model
from .machine import resolve_device, set_cpu_threads
from .rows.prompts import run_constraint
from .rows.row_stream import RowStream

_LONGER = 4
_OPEN_SHARE = 0.2  # of the first answers may be unfinished
# The end of a run has few answers, which drafts may speed up: some such steps are timed too.
_SMALL_BATCHES = (1, 4, 16, 32)
_SMALL_SHARE = 0.1  # of the time is for each of them, and a few steps at least
_FEW_STEPS, _ENOUGH_STEPS = 3, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """What was measured.  ``cpu`` values are processor seconds of this process, all threads.

    lengths: (answer tokens, whether the answer ended by itself) of every answer that was begun and
    may end by itself.
    row_s: seconds for each answered row outside of steps: encoding, parsing.
    """

    load_s: float
    seconds: float
    num_rows: int
    num_finished: int
    times: StepTimes
    cpu_times: StepTimes
    row_s: float
    row_cpu_s: float
    lengths: tuple[tuple[int, bool], ...]


class _TimeIsUp(Exception):
    """Leaves the stream between two steps."""


@dataclass(slots=True)
class _TimedEngine:
    """Passes everything on to the engine and keeps a record of each step.

    Answers begin one, four, sixteen, and at last as many at a time as the engine takes, which a run
    begins with the longest prompts: so a short rehearsal has fair batches of many sizes.
    """

    engine: LLMEngine
    seconds: float
    clock: Callable[[], float]
    prefills: list[tuple[int, float, float]] = field(default_factory=list)
    decodes: list[tuple[int, int, float, float]] = field(default_factory=list)
    cut_lengths: list[int] = field(default_factory=list)
    first_wave: set[str] | None = None  # whose answers were begun when the batch was full
    endless: set[str] = field(default_factory=set)  # requests that ignore the end-of-text token
    step_s: float = 0.0
    step_cpu_s: float = 0.0
    last_decode: DecodeResult | None = None
    began: float = 0.0
    stage: int = 0  # in _SMALL_BATCHES, then beyond
    stage_began: float = 0.0
    num_steady: int = 0  # decode steps since the stage, or the last prefill

    def __post_init__(self) -> None:
        self.began = self.stage_began = self.clock()

    def observe(self, result: DecodeResult) -> None:
        self.last_decode = result

    def has_room(self) -> bool:
        """Whether another row may begin now."""
        full = self.engine.config.max_num_seqs
        most = min(_SMALL_BATCHES[self.stage], full) if self.is_small else full
        return self.used_s <= self.seconds and len(self.engine.unfinished_lengths()) < most

    @property
    def is_small(self) -> bool:
        return self.stage < len(_SMALL_BATCHES)

    @property
    def used_s(self) -> float:
        return self.clock() - self.began

    def add_request(self, request: Request) -> None:
        if request.sampling.ignore_eos:
            self.endless.add(request.request_id)
        self.engine.add_request(request)

    def abort(self, request_id: str) -> bool:
        return self.engine.abort(request_id)

    def step(self) -> list[Completion]:
        if self.used_s > self.seconds:
            lengths = self.engine.unfinished_lengths()
            cut = lengths.keys() - self.endless
            self.cut_lengths = [lengths[name] for name in cut if lengths[name]]
            if self._knows_enough(lengths):
                raise _TimeIsUp
            if any(lengths.values()):
                self._drop_prompts(lengths)
        completions = self._timed_step()
        self._advance()
        return completions

    def _drop_prompts(self, lengths: Mapping[str, int]) -> None:
        """Prompts go first, and many long ones take their time: go on with the answers begun."""
        for name, length in lengths.items():
            if not length:
                self.engine.abort(name)

    def _advance(self) -> None:
        """To the next larger batch when this one was timed."""
        if self.is_small:
            is_late = self.clock() - self.stage_began > _SMALL_SHARE * self.seconds
            if self.num_steady >= (_FEW_STEPS if is_late else _ENOUGH_STEPS):
                self.stage, self.stage_began, self.num_steady = self.stage + 1, self.clock(), 0
        elif self.first_wave is None and self.num_steady:
            begun = self.engine.unfinished_lengths().items()
            self.first_wave = {name for name, length in begun if length} - self.endless

    def _timed_step(self) -> list[Completion]:
        before = self.engine.stats().num_prefill_tokens
        self.last_decode = None
        began, cpu_began = time.perf_counter(), time.process_time()
        completions = self.engine.step()
        wall, cpu = time.perf_counter() - began, time.process_time() - cpu_began
        self.step_s += wall
        self.step_cpu_s += cpu
        if (result := self.last_decode) is not None:
            self.decodes.append((len(result.tokens), sum(map(len, result.tokens)), wall, cpu))
            self.num_steady += 1
        elif tokens := self.engine.stats().num_prefill_tokens - before:
            self.prefills.append((tokens, wall, cpu))
            self.num_steady = 0
        return completions

    def _knows_enough(self, lengths: Mapping[str, int]) -> bool:
        """There is nothing to plan with before a step of each kind was run; and lengths are a
        guess as long as most of the first answers are not finished.  ``lengths``: of those
        that are not."""
        if not self.prefills or not self.decodes:
            return False
        is_timed = self.num_steady >= _ENOUGH_STEPS or self.used_s > 1.5 * self.seconds
        wave = self.first_wave or set()
        is_known = len(wave & lengths.keys()) <= _OPEN_SHARE * len(wave)
        return is_timed and (is_known or self.used_s > _LONGER * self.seconds)


def rehearse(
    model_path: str | Path | None,
    arguments: EngineArguments,
    rows: Iterable[tuple[int, Mapping[str, Any]]],
    defaults: SamplingParams,
    *,
    seconds: float,
    raw: bool = False,
    thinking: Thinking | None = None,
    constraint: Mapping[str, Any] | None = None,
) -> Rehearsal | None:
    """Load the model as ``OfflineEngine`` does and answer ``rows`` for about ``seconds``: on a CPU
    seconds that this thread runs, since other programs come and go.

    It takes up to ``_LONGER`` times as long while too few of the first answers are finished, and
    runs at least one prefill and one decode step, however long they take.  None if no row reached
    the engine.  Raises: as ``OfflineEngine``.
    """
    began = time.monotonic()
    timed: list[_TimedEngine] = []
    loaded = load_model(
        model_path,
        arguments.engine_settings(),
        device=resolve_device(arguments.device),
        num_threads=arguments.num_threads,
        profile_path=arguments.profile_file(),
        kernels=arguments.kernels_folder(),
        observer=lambda result: timed[0].observe(result),
    )
    engine = loaded.engine
    try:
        load_s = time.monotonic() - began
        probe = _TimedEngine(engine, seconds, step_clock(engine.config.device))
        timed.append(probe)
        stream = RowStream(
            probe,
            loaded.tokenizer,
            max_model_len=engine.max_model_len,
            vocab_size=loaded.config.vocab_size,
            max_in_flight=engine.config.max_num_seqs,
            seed=arguments.seed,
        )
        with closing(stream):
            return _answer(probe, stream, load_s, rows, defaults, raw, thinking, constraint)
    finally:
        engine.close()
        set_cpu_threads(loaded.threads_before, loaded.config.hidden_size)


def _answer(
    probe: _TimedEngine,
    stream: RowStream,
    load_s: float,
    rows: Iterable[tuple[int, Mapping[str, Any]]],
    defaults: SamplingParams,
    raw: bool,
    thinking: Thinking | None,
    constraint: Mapping[str, Any] | None,
) -> Rehearsal | None:
    num_rows = num_finished = 0
    lengths: list[tuple[int, bool]] = []
    began, cpu_began = time.perf_counter(), time.process_time()

    def counted() -> Iterable[tuple[int, Mapping[str, Any], SamplingParams] | None]:
        nonlocal num_rows
        for number, row in rows:
            while not probe.has_room():
                if not probe.engine.has_unfinished():
                    return
                yield None
            num_rows += 1
            yield number, row, defaults

    spec = run_constraint(constraint)
    try:
        for output in stream.run(counted(), raw=raw, thinking=thinking, constraint=spec):
            num_finished += 1
            if output.sampling is None or output.sampling.ignore_eos:
                continue
            lengths += [(len(s.token_ids), s.finish_reason != "length") for s in output.samples]
    except _TimeIsUp:
        lengths += [(length, False) for length in probe.cut_lengths]
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu_began
    if not probe.prefills:
        return None
    per_row = 1 / max(num_rows, 1)
    return Rehearsal(
        load_s=load_s,
        seconds=wall,
        num_rows=num_rows,
        num_finished=num_finished,
        times=fit_step_times(
            [(tokens, wall_s) for tokens, wall_s, _ in probe.prefills],
            [(number, tokens, wall_s) for number, tokens, wall_s, _ in probe.decodes],
        ),
        cpu_times=fit_step_times(
            [(tokens, cpu_s) for tokens, _, cpu_s in probe.prefills],
            [(number, tokens, cpu_s) for number, tokens, _, cpu_s in probe.decodes],
        ),
        row_s=max(0.0, wall - probe.step_s) * per_row,
        row_cpu_s=max(0.0, cpu - probe.step_cpu_s) * per_row,
        lengths=tuple(lengths),
    )
