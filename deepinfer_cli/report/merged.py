"""The report of merged shards: everything in theirs that can be combined."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .build import speculation
from .report import (
    Cost,
    Distribution,
    Latencies,
    Lengths,
    Report,
    RowCounts,
    SettingReport,
    Throughput,
    TimeSplit,
    TokenCounts,
)
from .summary import Histogram
from .timeline import TimelineReport

_ERROR_ROWS = 3
_IN_ORDER = SettingReport(value="input", origin="merge")  # whatever the order of the shards


def merged_report(output: Path, reports: Sequence[Report]) -> Report:
    """One report for all rows.  ``reports``: those of all shards of one run.

    Counts and rates are summed (shards run in parallel), times from start to end are those of the
    slowest shard.  Facts about single machines are left out.
    """
    first = reports[0]
    rows = _sum_of(RowCounts, [report.rows for report in reports])
    speed = [report.throughput for report in reports]
    throughput = dataclasses.replace(
        _sum_of(Throughput, speed),
        load_s=max(one.load_s for one in speed),
        answer_s=max(one.answer_s for one in speed),
        num_loads=max(one.num_loads for one in speed),
    )
    counts: Any = {name: _counts(getattr(r, name) for r in reports) for name in _COUNTED}
    return dataclasses.replace(
        first,
        **counts,
        status="finished",
        exit_code=_ERROR_ROWS if rows.errors else 0,
        message=f"merged from {len(reports)} shards",
        started=min(report.started for report in reports),
        ended=max(report.ended for report in reports),
        output=str(output),
        rows=rows,
        tokens=_sum_of(TokenCounts, [report.tokens for report in reports]),
        throughput=throughput,
        time_s=_sum_of(TimeSplit, [report.time_s for report in reports]),
        timeline=TimelineReport(),
        lengths=_all_of(Lengths, [report.lengths for report in reports]),
        latency_ms=_all_of(Latencies, [report.latency_ms for report in reports]),
        answer_tokens_per_s=merged_distribution([r.answer_tokens_per_s for r in reports]),
        speculation=speculation(
            sum(report.speculation.drafted_tokens for report in reports),
            sum(report.speculation.accepted_tokens for report in reports),
            None,
        ),
        preemptions=sum(report.preemptions for report in reports),
        engine=None,
        engine_notes={k: v for report in reports for k, v in report.engine_notes.items()},
        memory=None,
        cost=Cost(per_hour=first.cost.per_hour),
        settings={n: s for n, s in first.settings.items() if n != "shard"} | {"order": _IN_ORDER},
    )


_COUNTED = ("kinds", "errors", "finish_reasons", "constraints", "warnings", "notes")


def merged_distribution(parts: Sequence[Distribution]) -> Distribution:
    """The distribution of all values, exact except for the last digits of the mean."""
    whole = Histogram()
    for part in parts:
        whole.add_all(part)
    return whole.report()


def _counts(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return dict(total.most_common())


def _sum_of(kind: type[Any], parts: Sequence[Any]) -> Any:
    """A ``kind`` in which every field is the sum over ``parts``."""
    names = [field.name for field in dataclasses.fields(kind)]
    return kind(**{name: _sum(getattr(part, name) for part in parts) for name in names})


def _sum(values: Iterable[float]) -> float:
    return round(sum(values), 6)


def _all_of(kind: type[Any], parts: Sequence[Any]) -> Any:
    """A ``kind`` in which every field is the merged distribution of ``parts``."""
    names = [field.name for field in dataclasses.fields(kind)]
    return kind(**{n: merged_distribution([getattr(part, n) for part in parts]) for n in names})
