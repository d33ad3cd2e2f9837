"""``rehearse``: answers some rows for a bounded time and records the time of every step."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepinfer.engine.types import SamplingParams
from deepinfer.recipes.types import Thinking

from .arguments import EngineArguments
from .engine.limits.step_times import StepTimes, fit_step_times
from .engine.speculation.step_profile import step_clock
from .loading import load_model
from .machine import set_cpu_threads
from .rows.prompts import run_constraint
from .rows.row_stream import RowStream
from .timed_engine import TimedEngine, TimeIsUp


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """The measurements.  ``cpu`` values are processor seconds of this process, over all threads.

    lengths: (answer tokens, whether the answer ended by itself) of every answer that was started
    and can end by itself.
    row_s: seconds per answered row outside of steps: encoding, parsing.
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
    """Load the model as ``OfflineEngine`` does, and answer ``rows`` for about ``seconds`` (on a
    CPU, this thread's processor time, since other programs interfere).

    It takes up to four times as long while too few of the first answers are finished, and runs at
    least one prefill and one decode step.  None if no row reached the engine.
    Raises: as ``OfflineEngine``.
    """
    began = time.monotonic()
    timed: list[TimedEngine] = []
    loaded = load_model(
        model_path,
        arguments.engine_settings(),
        observer=lambda result: timed[0].observe(result),
        **arguments.loading(),
    )
    engine = loaded.engine
    try:
        load_s = time.monotonic() - began
        probe = TimedEngine(engine, seconds, step_clock(engine.config.device))
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
    probe: TimedEngine,
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
    except TimeIsUp:
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
