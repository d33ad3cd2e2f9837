"""Compares two runs: their numbers, settings, and answers."""

from __future__ import annotations

import os
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from statistics import median
from typing import Any

from .file import StoredReport
from .report import Report

SCHEMA = "deepinfer.comparison/1"
_MOST_EXAMPLES = 10
_SHOWN = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """``ratio`` is b over a; None if a is 0 or one of them is unknown."""

    name: str
    a: float | None
    b: float | None
    ratio: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    name: str
    a: object
    b: object


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first position where two answers differ, with the text there."""

    id: str
    field: str
    at: int
    a: str
    b: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerComparison:
    """Result rows, paired by id; rows with the same id are paired in order.

    The ratios are medians over the pairs, b over a.
    """

    in_both: int
    only_in_a: int
    only_in_b: int
    equal: int
    different: int
    examples: tuple[Difference, ...]
    completion_tokens_ratio: float | None
    total_s_ratio: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    schema: str
    a: str
    b: str
    metrics: tuple[Metric, ...]
    settings: tuple[Change, ...]
    circumstances: tuple[Change, ...]
    answers: AnswerComparison | None


def compare(a: StoredReport, b: StoredReport) -> Comparison:
    """Compare two runs, and their answers if both result files exist."""
    answers = None
    if a.results is not None and b.results is not None:
        answers = compare_answers(_rows(a.results), _rows(b.results))
    return Comparison(
        schema=SCHEMA,
        a=_name(a, b),
        b=_name(b, a),
        metrics=tuple(_metrics(a.report, b.report)),
        settings=_changes(
            {name: setting.value for name, setting in a.report.settings.items()},
            {name: setting.value for name, setting in b.report.settings.items()},
        ),
        circumstances=_changes(_circumstances(a.report), _circumstances(b.report)),
        answers=answers,
    )


def compare_answers(
    first: Iterator[Mapping[str, Any]], second: Iterator[Mapping[str, Any]]
) -> AnswerComparison:
    """Pair rows by id in one pass over both; only rows without their partner are kept in memory."""
    waiting: tuple[dict[str, deque[Any]], dict[str, deque[Any]]] = ({}, {})
    equal = different = 0
    examples: list[Difference] = []
    tokens, times = array("d"), array("d")
    for pair in zip_longest(first, second):
        for side, row in enumerate(pair):
            if row is None:
                continue
            partner = _take(waiting[1 - side], str(row["id"]))
            if partner is None:
                waiting[side].setdefault(str(row["id"]), deque()).append(row)
                continue
            a, b = (row, partner) if side == 0 else (partner, row)
            found = _difference(a, b)
            equal += found is None
            different += found is not None
            if found is not None and len(examples) < _MOST_EXAMPLES:
                examples.append(found)
            _add_ratio(tokens, a["usage"]["completion_tokens"], b["usage"]["completion_tokens"])
            _add_ratio(times, _total_s(a), _total_s(b))
    left = [sum(map(len, side.values())) for side in waiting]
    return AnswerComparison(
        in_both=equal + different,
        only_in_a=left[0],
        only_in_b=left[1],
        equal=equal,
        different=different,
        examples=tuple(examples),
        completion_tokens_ratio=round(median(tokens), 4) if tokens else None,
        total_s_ratio=round(median(times), 4) if times else None,
    )


def _rows(path: Path) -> Iterator[Mapping[str, Any]]:
    from deepinfer_cli.input.reader import open_reader

    with closing(open_reader(str(path))) as reader:
        for row in reader.rows:
            if row.fields is not None:
                yield row.fields


def _take(waiting: dict[str, deque[Any]], row_id: str) -> Any:
    queue = waiting.get(row_id)
    if queue is None:
        return None
    row = queue.popleft()
    if not queue:
        del waiting[row_id]
    return row


def _difference(a: Mapping[str, Any], b: Mapping[str, Any]) -> Difference | None:
    mine, other = _answer(a), _answer(b)
    for field in mine:
        one, two = mine[field], other.get(field, "")
        if one != two:
            at = len(os.path.commonprefix([one, two]))
            start = max(0, at - _SHOWN // 3)
            shown = [text[start : start + _SHOWN] for text in (one, two)]
            return Difference(id=str(a["id"]), field=field, at=at, a=shown[0], b=shown[1])
    return None


def _answer(row: Mapping[str, Any]) -> dict[str, str]:
    """The texts of an answer, without ids of tool calls, which derive from the row's id."""
    samples = row.get("samples") or [row]
    texts: dict[str, str] = {"samples": str(len(samples))}
    for place, sample in enumerate(samples):
        where = f"samples[{place}]." if len(samples) > 1 else ""
        calls = [call["function"] for call in sample.get("tool_calls") or ()]
        texts[f"{where}reasoning"] = sample.get("reasoning") or ""
        texts[f"{where}content"] = sample.get("content") or ""
        texts[f"{where}tool_calls"] = "".join(f"{c['name']}({c['arguments']})" for c in calls)
        texts[f"{where}finish_reason"] = str(sample.get("finish_reason"))
    return texts


def _total_s(row: Mapping[str, Any]) -> float | None:
    timing = row.get("timing")
    return timing["total_s"] if isinstance(timing, Mapping) else None


def _add_ratio(ratios: array[float], a: float | None, b: float | None) -> None:
    if a and b:
        ratios.append(b / a)


def _metrics(a: Report, b: Report) -> Iterator[Metric]:
    for name, number in _NUMBERS.items():
        one, two = number(a), number(b)
        if one is not None or two is not None:
            ratio = round(two / one, 4) if one and two is not None else None
            yield Metric(name=name, a=one, b=two, ratio=ratio)


def _occupancy(report: Report) -> float | None:
    stats = report.engine
    if stats is None or not stats.num_decode_steps:
        return None
    return round(stats.num_decode_rows / stats.num_decode_steps, 2)


_NUMBERS: dict[str, Callable[[Report], float | None]] = {
    "rows answered": lambda run: run.rows.results,
    "rows failed": lambda run: run.rows.errors,
    "prompt tokens": lambda run: run.tokens.prompt_tokens,
    "prompt tokens from the cache": lambda run: run.tokens.cached_tokens,
    "answer tokens": lambda run: run.tokens.completion_tokens,
    "rows per second": lambda run: run.throughput.rows_per_s,
    "answer tokens per second": lambda run: run.throughput.completion_tokens_per_s,
    "seconds to load": lambda run: run.throughput.load_s,
    "seconds to answer": lambda run: run.throughput.answer_s,
    "seconds of prefill": lambda run: run.time_s.prefill,
    "seconds of decode": lambda run: run.time_s.decode,
    "seconds of processor time": lambda run: run.time_s.cpu,
    "ms to the first token, median": lambda run: run.latency_ms.first_token.p50,
    "ms to the last token, median": lambda run: run.latency_ms.finished.p50,
    "ms to the last token, 99 %": lambda run: run.latency_ms.finished.p99,
    "answers per decode step": _occupancy,
    "tokens per answer and step": lambda run: run.speculation.accepted_length,
    "preemptions": lambda run: run.preemptions,
    "cost": lambda run: run.cost.total,
    "joules": lambda run: run.cost.energy_j,
    "joules of the GPUs": lambda run: run.cost.gpu_energy_j,
    "joules per answer token": lambda run: run.cost.energy_per_token_j,
    "joules of the GPUs per answer token": lambda run: run.cost.gpu_energy_per_token_j,
}


def _circumstances(report: Report) -> dict[str, object]:
    return {
        "status": report.status,
        "input": report.input.name,
        "digest of the rows": report.input.digest,
        "model": report.model,
        "fingerprint of the model": report.model_fingerprint,
        "device": report.device_name,
        "processor": report.machine.cpu,
        **report.versions,
    }


def _changes(a: Mapping[str, object], b: Mapping[str, object]) -> tuple[Change, ...]:
    names = [*a, *(name for name in b if name not in a)]
    return tuple(
        Change(name=name, a=a.get(name), b=b.get(name))
        for name in names
        if a.get(name) != b.get(name)
    )


def _name(mine: StoredReport, other: StoredReport) -> str:
    """The output's name, with its folder if both runs have the same name."""
    name = Path(mine.report.output).name
    return str(mine.path.parent / name) if name == Path(other.report.output).name else name
