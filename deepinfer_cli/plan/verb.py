"""``deepinfer plan``: scans the input, rehearses some rows and prints the plan."""

from __future__ import annotations

import time
from contextlib import closing

from deepinfer.arguments import EngineArguments
from deepinfer.dry_run import DryRun
from deepinfer.rehearsal import rehearse
from deepinfer.rows.prompts import run_constraint as constraint_of
from deepinfer_cli.input.reader import Reader, open_reader
from deepinfer_cli.report.file import read_report
from deepinfer_cli.report.report import InputFacts, SettingReport
from deepinfer_cli.run.console import Snapshot, duration, make_console
from deepinfer_cli.settings.constraint import run_constraint
from deepinfer_cli.settings.engine_arguments import engine_arguments
from deepinfer_cli.settings.layers import Resolved
from deepinfer_cli.stdio import data_stream, print_json
from deepinfer_cli.typed_json import to_json

from .estimate import estimate, from_rehearsal, from_report
from .plan import SCHEMA, Estimate, Plan
from .scan import Scan
from .table import print_plan

_ERROR_ROWS = 3
# Rows for the rehearsal: enough for several full batches and for the distribution of lengths.
_BATCHES = 16


def plan(
    source: str, resolved: Resolved, *, like: str | None, seconds: float, as_json: bool, quiet: bool
) -> int:
    """Print the plan; return 0, or 3 if some rows would fail.  Raises: DeepInferError."""
    settings, stream = resolved.settings, data_stream()
    console = make_console(quiet=quiet)
    constraint = run_constraint(resolved)
    spec = constraint_of(constraint)
    earlier = None if like is None else from_report(read_report(like).report)
    arguments = EngineArguments(**engine_arguments(settings))
    dry_run = DryRun(settings.model, arguments)
    with (
        closing(dry_run),
        closing(
            open_reader(source, mapping=settings.map, max_row_bytes=settings.max_row_bytes)
        ) as reader,
    ):
        dry_run.check(settings.sampling(), spec)
        scan = Scan(reader, dry_run, settings, sample=_BATCHES * dry_run.config.max_num_seqs)
        with console.watch(_Progress(scan, reader, settings.limit)):
            scan.run(spec)
        input_facts = InputFacts(name=reader.name, format=reader.format, digest=scan.input.digest())
    found: Estimate | None = None
    num_ranks = arguments.parallel_sizes().world_size
    if num_ranks > 1 and earlier is None:
        console.warn(f"no estimate: it is measured on one rank, not {num_ranks}; give --like RUN")
    elif earlier is None and seconds > 0 and scan.sample:
        console.say(
            f"answering some rows to measure: about {duration(seconds)}, longer on a busy machine "
            "(--calibrate)"
        )
        rehearsal = rehearse(
            settings.model,
            arguments,
            scan.sample,
            settings.sampling(),
            seconds=seconds,
            raw=settings.raw,
            thinking=settings.thinking,  # type: ignore[arg-type]
            constraint=constraint,
        )
        if rehearsal is not None:
            earlier = from_rehearsal(rehearsal, sum(scan.kinds.values()))
    if earlier is not None and scan.num_answers:
        found = estimate(scan, earlier, dry_run.config, dry_run.memory)
    made = _plan(input_facts, scan, dry_run, resolved, found)
    if as_json:
        print_json(to_json(made))
    else:
        print_plan(made, stream)
    return _ERROR_ROWS if made.failing else 0


def _plan(
    input_facts: InputFacts,
    scan: Scan,
    dry_run: DryRun,
    resolved: Resolved,
    found: Estimate | None,
) -> Plan:
    prompts, limits = scan.prompt_lengths.report(), scan.answer_limits.report()
    answer = limits if found is None else found.answer_lengths
    return Plan(
        schema=SCHEMA,
        input=input_facts,
        model=resolved.settings.model or "embedded",
        device=dry_run.config.device,
        rows=scan.num_rows,
        failing=scan.errors.total(),
        kinds=dict(sorted(scan.kinds.items())),
        errors=dict(scan.errors.most_common()),
        examples=tuple(scan.examples.values()),
        answers=scan.num_answers,
        prompt_tokens=scan.prompt_tokens,
        shared_tokens=scan.shared_tokens,
        prompt_lengths=prompts,
        answer_limits=limits,
        memory=dry_run.memory,
        fitting=dry_run.memory.num_fitting(round((prompts.mean or 0) + (answer.mean or 0))),
        estimate=found,
        row_notes=dict(scan.notes.most_common()),
        other_fields=scan.other_fields,
        notes=dict(dry_run.notes),
        settings={
            name: SettingReport(value=entry["value"], origin=entry["origin"])
            for name, entry in resolved.report().items()
        },
    )


class _Progress:
    """Progress of the pass over the input."""

    def __init__(self, scan: Scan, reader: Reader, limit: int | None) -> None:
        self._scan, self._reader, self._limit = scan, reader, limit
        self._began = time.monotonic()

    def __call__(self) -> Snapshot:
        rows, elapsed = self._scan.num_rows, time.monotonic() - self._began
        total, share = self._reader.num_rows, self._reader.share_read()
        if total is None and share:
            total = max(rows, round(rows / share))
        if total is not None and self._limit is not None:
            total = min(total, self._limit)
        return Snapshot(
            rows=rows,
            total_rows=total,
            is_estimate=self._reader.num_rows is None,
            running=0,
            errors=self._scan.errors.total(),
            tokens_per_s=self._scan.prompt_tokens / max(elapsed, 1e-9),
            acceptance=None,
            elapsed_s=elapsed,
            eta_s=None if not total or not rows else elapsed / rows * max(0, total - rows),
            rows_per_s=rows / max(elapsed, 1e-9),
        )
