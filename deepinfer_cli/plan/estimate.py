"""Estimates the time of a run, from a rehearsal of some rows or the report of an earlier run."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

from deepinfer.engine.config import EngineConfig
from deepinfer.engine.limits.estimate import RunEstimate, estimate_run
from deepinfer.engine.limits.step_times import StepTimes
from deepinfer.engine.scheduling.answer_lengths import AnswerLengths
from deepinfer.engine.types import MemoryPlan
from deepinfer.errors import ConfigError
from deepinfer.rehearsal import Rehearsal
from deepinfer_cli.report.pages.words import seconds
from deepinfer_cli.report.report import Report
from deepinfer_cli.report.summary import Histogram

from .plan import Estimate
from .scan import Scan

NUM_DRAWS = 40
_MOST_PLAYED = 2_048


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The basis of an estimate.  ``row_s``: seconds per row outside of steps and reading."""

    basis: str
    load_s: float
    times: StepTimes
    cpu_times: StepTimes | None
    row_s: float
    row_cpu_s: float
    lengths: AnswerLengths


def from_rehearsal(rehearsal: Rehearsal, num_answerable: int) -> Measured:
    return Measured(
        basis=f"{rehearsal.num_rows:,} of {num_answerable:,} rows, run here for "
        f"{seconds(rehearsal.seconds)}",
        load_s=rehearsal.load_s,
        times=rehearsal.times,
        cpu_times=rehearsal.cpu_times,
        row_s=rehearsal.row_s,
        row_cpu_s=rehearsal.row_cpu_s,
        lengths=AnswerLengths(rehearsal.lengths),
    )


def from_report(report: Report) -> Measured:
    """A report only has one mean per phase, so batch sizes should be similar.

    Raises: ConfigError if the run answered too few rows.
    """
    stats, split = report.engine, report.time_s
    if stats is None and report.throughput.results:
        raise ConfigError(
            f"the report of {report.output} has no step times, because it was merged: give one of "
            "its shards"
        )
    if stats is None or not stats.num_prefill_tokens or not stats.num_decode_rows:
        why = "no answer went on after its first token" if report.throughput.results else (
            "no row was answered"
        )  # fmt: skip
        raise ConfigError(f"the report of {report.output} has no step times: {why}")
    times = StepTimes(
        prefill_base_s=0.0,
        prefill_token_s=stats.prefill_s / stats.num_prefill_tokens,
        num_requests=(stats.num_decode_rows / stats.num_decode_steps,),
        decode_step_s=(stats.decode_s / stats.num_decode_steps,),
        decode_tokens=(max(1.0, stats.num_decode_tokens / stats.num_decode_rows),),
    )
    cut = report.finish_reasons.get("length", 0)
    return Measured(
        basis=f"the report of {report.output}, {report.device_name}",
        load_s=report.throughput.load_s / max(1, report.throughput.num_loads),
        times=times,
        cpu_times=None,
        row_s=(split.schedule + split.write + split.other) / max(1, report.throughput.results),
        row_cpu_s=0.0,
        lengths=AnswerLengths(_lengths_of(report, cut)),
    )


def estimate(scan: Scan, measured: Measured, config: EngineConfig, memory: MemoryPlan) -> Estimate:
    """The estimate of all rows of ``scan``."""

    def play(times: StepTimes, lengths: Sequence[int]) -> RunEstimate:
        return estimate_run(
            islice(scan.requests(lengths), len(lengths)),
            times,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            cache_tokens=memory.cache_tokens,
        )

    known, num_guessed = measured.lengths, 0
    histogram = Histogram()
    drawn = known.draw(scan.num_answers)
    lengths = _fitting(scan, drawn)
    for drawn_length, length, (most, endless) in zip(drawn, lengths, scan.limits(), strict=True):
        num_guessed += not endless and known.is_guess(drawn_length, most)
        histogram.add(length)
    played = play(measured.times, lengths)
    low, high, num_lengths = 1.0, 1.0, None
    if not all(endless for _, endless in scan.limits()):
        num_lengths = known.num_ended
        low, high = _spread(scan, known, partial(play, measured.times))
    num_rows = sum(scan.kinds.values())
    steps_s, outside_s = played.step_s, scan.input.read_s + num_rows * measured.row_s
    answer_s = steps_s + outside_s
    cpu_s = None
    if measured.cpu_times is not None:
        cpu = play(measured.cpu_times, lengths)
        cpu_s = cpu.step_s + scan.input.read_s + num_rows * measured.row_cpu_s
    rows = played.num_decode_rows / played.num_decode_steps if played.num_decode_steps else 0.0
    return Estimate(
        basis=measured.basis,
        load_s=round(measured.load_s, 3),
        answer_s=round(answer_s, 3),
        answer_low_s=round(low * steps_s + outside_s, 3),
        answer_high_s=round(high * steps_s + outside_s, 3),
        cpu_s=None if cpu_s is None else round(cpu_s, 3),
        prefill_steps=played.num_prefill_steps,
        decode_steps=played.num_decode_steps,
        answers_at_a_time=round(rows, 2),
        answer_tokens=histogram.total,
        answer_tokens_per_s=round(histogram.total / max(answer_s, 1e-9), 1),
        answer_lengths=histogram.report(),
        num_lengths=num_lengths,
        guessed_share=round(num_guessed / max(1, scan.num_answers), 3),
    )


def _fitting(scan: Scan, drawn: Sequence[int | None]) -> array[int]:
    """Drawn lengths clamped to the limits of the first rows; with ``ignore_eos``, the limit."""
    return array(
        "I",
        (
            most if endless or length is None else min(length, most)
            for length, (most, endless) in zip(drawn, scan.limits(), strict=False)
        ),
    )


def _spread(
    scan: Scan, known: AnswerLengths, play: Callable[[Sequence[int]], RunEstimate]
) -> tuple[float, float]:
    """The range of run times, as multiples of the estimate, over bootstrap samples of the measured
    answers with randomly drawn lengths; simulated for the first rows."""
    count = min(scan.num_answers, _MOST_PLAYED)
    middle_s = play(_fitting(scan, known.draw(count))).step_s
    others = sorted(
        play(_fitting(scan, known.measured_again(seed).draw(count, seed, evenly=False))).step_s
        for seed in range(1, NUM_DRAWS + 1)
    )
    return min(1.0, others[0] / middle_s), max(1.0, others[-1] / middle_s)


def _lengths_of(report: Report, num_cut: int) -> Iterator[tuple[int, bool]]:
    """The longest answers are assumed to be those that were cut off."""
    left = report.lengths.answer.num - num_cut
    for largest, num in report.lengths.answer.buckets:
        for _ in range(num):
            yield largest, left > 0
            left -= 1
