"""``deepinfer bench run``: times several whole runs over a file."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from deepinfer.errors import DeepInferError, InputError
from deepinfer_cli.report.report import Report
from deepinfer_cli.run.console import Console
from deepinfer_cli.typed_json import from_json, to_json

from .page import table

SCHEMA = "deepinfer.bench_run/1"
_SOME_ROWS_FAILED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRuns:
    """The reports of identical runs over one file."""

    schema: str = SCHEMA
    source: str
    reports: Sequence[Report]

    @property
    def tokens_per_s(self) -> float:
        return median(report.throughput.completion_tokens_per_s for report in self.reports)


class RoundError(DeepInferError):
    """A run did not finish all rows; ``exit_code`` is that of the run."""

    def __init__(self, number: int, exit_code: int) -> None:
        super().__init__(f"round {number} ended with exit code {exit_code}: nothing to time")
        self.exit_code = exit_code


def run_often(
    source: str, rounds: int, run_once: Callable[[Path], int], console: Console
) -> FileRuns:
    """Answer ``source`` ``rounds`` times, into files that are deleted.

    ``run_once`` takes the output path and returns the exit code of a run.
    Raises: RoundError; InputError if no row was answered.
    """
    reports = []
    with tempfile.TemporaryDirectory(prefix="deepinfer-bench-") as folder:
        for number in range(1, rounds + 1):
            console.say(f"round {number} of {rounds}")
            output = Path(folder) / "answers.jsonl"
            code = run_once(output)
            if code not in (0, _SOME_ROWS_FAILED):
                raise RoundError(number, code)
            text = output.with_name(output.name + ".report.json").read_text(encoding="utf-8")
            reports.append(from_json(Report, json.loads(text)))
            if not reports[-1].rows.results:
                raise InputError(f"{source}: no row was answered, so there is nothing to time")
    return FileRuns(source=source, reports=tuple(reports))


def runs_page(runs: FileRuns) -> str:
    """One line per round, then the median."""
    first = runs.reports[0]
    rows, tokens = first.rows, first.tokens
    body = []
    for number, report in enumerate(runs.reports, 1):
        speed, split = report.throughput, report.time_s
        outside = speed.answer_s - split.prefill - split.decode
        body.append(
            [
                str(number),
                f"{speed.load_s:.2f}",
                f"{speed.answer_s:.2f}",
                f"{speed.rows_per_s:,.2f}",
                f"{speed.prompt_tokens_per_s:,.0f}",
                f"{speed.completion_tokens_per_s:,.0f}",
                f"{outside / speed.answer_s:.1%}" if speed.answer_s else "",
            ]
        )
    head = ["round", "load s", "answer s", "rows/s", "prompt tokens/s", "answer tokens/s"]
    return (
        f"# deepinfer bench run {runs.source}\n\n{rows.results:,} rows answered, "
        f"{rows.errors:,} failed; {tokens.prompt_tokens:,} prompt tokens, "
        f"{tokens.completion_tokens:,} answer tokens; {first.device}\n\n"
        + table([*head, "outside the model"], body)
        + f"\nMedian: {runs.tokens_per_s:,.0f} answer tokens/s\n"
    )


def runs_json(runs: FileRuns) -> str:
    return json.dumps(to_json(runs), indent=1) + "\n"
