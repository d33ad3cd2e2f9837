"""Combines the reports of the parts of a resumed run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from deepinfer.engine.types import EngineStats
from deepinfer_cli.strict_json import read_json
from deepinfer_cli.typed_json import from_json, to_json

from .build import speculation
from .report import Cost, Report, Throughput, TimeSplit
from .timeline import joined

_MEASURED = (
    *("rows", "tokens", "throughput", "time_s", "timeline", "lengths", "latency_ms", "engine"),
    *("answer_tokens_per_s", "speculation", "preemptions", "memory", "cost"),
)
_MOST = 1e18
# Counters to take from the last engine; to take the maximum of; all others are summed.
_LATEST = {"most_running", "num_blocks", "num_graphs", "expert_imbalance_after"}
_HIGHEST = {"peak_blocks", "expert_imbalance_before"}
_STRETCHES = {"decode_batches", "verify_lengths"}  # means over equal intervals of decode steps


def earlier_report(path: Path) -> Report | None:
    """The report of the parts before; None if there is no valid one: a damaged file must not stop
    the run."""
    try:
        report = from_json(Report, read_json(path.read_bytes()))
    except (OSError, ValueError, RecursionError):
        return None
    measured = (getattr(report, name) for name in _MEASURED)
    is_sound = report.timeline.stretch_s > 0 and all(_is_sound(to_json(part)) for part in measured)
    return report if is_sound else None


def _is_sound(value: Any) -> bool:
    """Whether all numbers are finite and not negative."""
    if isinstance(value, int | float):
        return bool(0 <= value < _MOST)
    if isinstance(value, dict | list):
        return all(map(_is_sound, value.values() if isinstance(value, dict) else value))
    return True


def with_earlier(earlier: Report | None, part: Report) -> Report:
    """``part``, which has the rows of the whole run, plus the measurements of ``earlier``."""
    if earlier is None:
        return part
    # If the earlier report has no engine, as after a merge, leave it out altogether.
    is_known = earlier.engine is not None or not earlier.throughput.results
    engine = _added(earlier.engine, part.engine) if is_known else None
    drafts = part.speculation
    return dataclasses.replace(
        part,
        started=min(earlier.started, part.started),
        model_fingerprint=part.model_fingerprint or earlier.model_fingerprint,
        device=part.device or earlier.device,
        device_name=part.device_name or earlier.device_name,
        throughput=_throughput(earlier.throughput, part.throughput),
        time_s=_time_split(earlier.time_s, part.time_s),
        timeline=joined(earlier.timeline, part.timeline),
        speculation=speculation(drafts.drafted_tokens, drafts.accepted_tokens, engine),
        engine=engine,
        engine_notes={**earlier.engine_notes, **part.engine_notes},
        memory=part.memory or earlier.memory,
        cost=_cost(earlier, part),
    )


def _throughput(first: Throughput, second: Throughput) -> Throughput:
    return Throughput.of(
        load_s=first.load_s + second.load_s,
        answer_s=first.answer_s + second.answer_s,
        num_loads=first.num_loads + second.num_loads,
        results=first.results + second.results,
        prompt_tokens=first.prompt_tokens + second.prompt_tokens,
        completion_tokens=first.completion_tokens + second.completion_tokens,
    )


def _time_split(first: TimeSplit, second: TimeSplit) -> TimeSplit:
    names = [field.name for field in dataclasses.fields(TimeSplit)]
    sums = {name: round(getattr(first, name) + getattr(second, name), 3) for name in names}
    return TimeSplit(**sums)


def _cost(earlier: Report, part: Report) -> Cost:
    first, second = earlier.cost, part.cost
    tokens = earlier.throughput.completion_tokens + part.throughput.completion_tokens
    gpu = first.gpu_energy_j  # a part without an engine used no GPU
    if part.engine is not None:
        gpu = second.gpu_energy_j if earlier.engine is None else _sum(gpu, second.gpu_energy_j)
    return Cost.of(
        num_tokens=tokens,
        per_hour=second.per_hour,
        total=_sum(first.total, second.total),
        energy_j=_sum(first.energy_j, second.energy_j),
        gpu_energy_j=gpu,
    )


def _sum(first: float | None, second: float | None) -> float | None:
    """The sum; None if either is None."""
    return None if first is None or second is None else round(first + second, 6)


def _added(first: EngineStats | None, second: EngineStats | None) -> EngineStats | None:
    """The counters of two engines that ran in sequence."""
    if first is None or second is None:
        return first or second
    added: dict[str, Any] = {}
    for field in dataclasses.fields(EngineStats):
        name, pair = field.name, (getattr(first, field.name), getattr(second, field.name))
        known = [value for value in pair if value is not None]
        if name in _LATEST:
            added[name] = known[-1] if known else None
        elif name in _HIGHEST:
            added[name] = max(known, default=None)
        elif name == "calibration_error":
            added[name] = _calibration(first, second)
        elif name in _STRETCHES:
            added[name] = _stretches(*pair, first.num_decode_steps, second.num_decode_steps)
        elif isinstance(field.default, tuple):
            added[name] = tuple(map(sum, zip_longest(*pair, fillvalue=0)))
        else:
            added[name] = sum(pair)
    return EngineStats(**added)


def _calibration(first: EngineStats, second: EngineStats) -> float | None:
    """The calibration error, weighted by drafts."""
    known = [
        (stats.calibration_error, stats.num_draft_tokens)
        for stats in (first, second)
        if stats.calibration_error is not None
    ]
    weight = sum(num for _, num in known)
    return sum(error * num for error, num in known) / weight if weight else None


def _stretches(
    first: Sequence[float], second: Sequence[float], num_first: int, num_second: int
) -> tuple[float, ...]:
    """Concatenate means over equal stretches of ``num_first`` and of ``num_second`` steps,
    resampled to equal stretches of all steps: as many as the longer of the two has."""
    pieces = [
        (num / len(values), value)
        for values, num in ((first, num_first), (second, num_second))
        for value in values
    ]
    if not first or not second or not num_first or not num_second:
        return tuple(first or second)
    width = (num_first + num_second) / max(len(first), len(second))
    means, amount, room = [], 0.0, width
    for steps, value in pieces:
        while steps > room + 1e-9:
            means.append(round((amount + room * value) / width, 3))
            steps, amount, room = steps - room, 0.0, width
        amount, room = amount + steps * value, room - steps
    if room < width - 1e-9:
        means.append(round(amount / (width - room), 3))
    return tuple(means)
