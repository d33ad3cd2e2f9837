"""A report as tables of text, shared by Markdown and HTML."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

from deepinfer.engine.types import MemoryPlan
from deepinfer_cli.report.report import Distribution, Latencies, Report

from .words import count, milliseconds, percent, seconds, short, size

TIME_NAMES = {
    "read": "reading the input",
    "prefill": "prefill",
    "decode": "decode",
    "schedule": "scheduling",
    "write": "writing results",
    "other": "encoding, parsing",
}
LATENCY_NAMES = {
    "queued": "queued",
    "prefill": "prefill",
    "decode": "decode",
    "first_token": "first token",
    "finished": "finished",
}


@dataclass(frozen=True, slots=True)
class Table:
    """``head`` may be empty.  Cells are plain text; with ``is_numeric`` all but the first column
    are right-aligned."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    is_numeric: bool = True
    note: str = ""


@dataclass(frozen=True, slots=True)
class Figure:
    """One of the numbers at the top of a page."""

    label: str
    value: str
    note: str = ""


def key_figures(report: Report) -> list[Figure]:
    rows, speed, drafts = report.rows, report.throughput, report.speculation
    failed = f"{count(rows.errors)} failed" if rows.errors else "none failed"
    figures = [Figure("rows answered", short(rows.results), f"of {count(rows.input)}, {failed}")]
    if rows.results:
        tokens = report.tokens
        note = f"and {short(tokens.prompt_tokens)} of prompts"
        figures.append(Figure("answer tokens", short(tokens.completion_tokens), note))
    if speed.completion_tokens_per_s:
        note = f"{short(speed.rows_per_s)} rows/s"
        figures.append(Figure("tokens per second", short(speed.completion_tokens_per_s), note))
    finished = report.latency_ms.finished
    if finished.p50 is not None:
        note = f"99 % within {milliseconds(finished.p99)}"
        figures.append(Figure("median row", milliseconds(finished.p50), note))
    if drafts.accepted_length is not None:
        note = f"{percent(drafts.acceptance)} of drafts accepted"
        figures.append(Figure("tokens per step", f"{drafts.accepted_length:.2f}", note))
    if report.tokens.cached_tokens:
        share = report.tokens.cached_tokens / report.tokens.prompt_tokens
        note = f"{short(report.tokens.cached_tokens)} prompt tokens"
        figures.append(Figure("shared prefixes", percent(share), note))
    if report.cost.total is not None:
        per_million = report.cost.per_million_tokens
        note = "" if per_million is None else f"{short(per_million)} per million tokens"
        figures.append(Figure("cost", short(report.cost.total), note))
    return figures


def headline(report: Report) -> str:
    """One line: what ran, where and when."""
    speed = report.throughput
    parts = [
        report.ended.replace("T", " ").replace("Z", " UTC"),
        f"model {report.model}",
        (report.device_name or "no engine was needed").replace(" 1 threads", " 1 thread"),
        f"{seconds(speed.load_s + speed.answer_s)} in all",
    ]
    return " · ".join(parts)


def all_tables(report: Report) -> list[Table]:
    """All tables of the report, the most important first, without empty ones."""
    tables = [
        outcome(report),
        counts("Errors", "kind", "rows", report.errors),
        counts("Warnings", "of answers", "answers", report.warnings),
        counts("Notes", "where a row got something else than it asked", "rows", report.notes),
        tokens(report),
        lengths(report),
        latencies(report.latency_ms),
        time_split(report),
        speculation(report),
        engine(report),
        memory(report.memory),
        cost(report),
        changed_settings(report),
        manifest(report),
    ]
    return [table for table in tables if table.rows]


def outcome(report: Report) -> Table:
    rows = report.rows
    total = max(rows.input, 1)
    lines = [("answered", count(rows.results), percent(rows.results / total))]
    lines.append(("failed", count(rows.errors), percent(rows.errors / total)))
    if missing := rows.input - rows.results - rows.errors:
        lines.append(("not finished", count(missing), percent(missing / total)))
    if rows.resumed:
        lines.append(("of an earlier part", count(rows.resumed), percent(rows.resumed / total)))
    answers = sum(report.finish_reasons.values())
    for reason, num in report.finish_reasons.items():
        lines.append((f"answers ended by {reason}", count(num), percent(num / answers)))
    judged = sum(report.constraints.values())
    for verdict, num in report.constraints.items():
        lines.append((f"held to a form: {verdict}", count(num), percent(num / judged)))
    return Table("Rows", ("", "rows", "share"), lines)


def counts(title: str, what: str, unit: str, found: Mapping[str, int]) -> Table:
    total = sum(found.values())
    rows = [(name, count(num), percent(num / total)) for name, num in found.items()]
    return Table(title, (what, unit, "share"), rows)


def tokens(report: Report) -> Table:
    found, speed = report.tokens, report.throughput
    rows = [
        ("prompts", count(found.prompt_tokens), count(speed.prompt_tokens_per_s)),
        ("answers", count(found.completion_tokens), count(speed.completion_tokens_per_s)),
    ]
    if found.cached_tokens:
        rows.insert(1, ("of them taken from the prefix cache", count(found.cached_tokens), ""))
    if found.reasoning_tokens:
        rows.append(("of them thinking", count(found.reasoning_tokens), ""))
    return Table("Tokens", ("", "tokens", "per second"), rows if report.rows.results else [])


def lengths(report: Report) -> Table:
    named = {"prompt": report.lengths.prompt, "answer": report.lengths.answer}
    rows = [(name, *_spread(spread, count)) for name, spread in named.items() if spread.num]
    if (speed := report.answer_tokens_per_s).num:
        rows.append(("tokens per second of an answer", *_spread(speed, count)))
    return Table("Lengths, in tokens", ("", "median", "90 %", "99 %", "longest"), rows)


def latencies(found: Latencies) -> Table:
    named = {name: getattr(found, field) for field, name in LATENCY_NAMES.items()}
    rows = [(name, *_spread(spread, milliseconds)) for name, spread in named.items() if spread.num]
    return Table("Latency of an answer", ("", "median", "90 %", "99 %", "longest"), rows)


def time_split(report: Report) -> Table:
    split = report.time_s
    total = max(report.throughput.answer_s, 1e-9)
    rows = [
        (name, seconds(getattr(split, field)), percent(min(1.0, getattr(split, field) / total)))
        for field, name in TIME_NAMES.items()
    ]
    if not any(amount for _, amount in shares_of_time(report)):
        rows = []
    note = f"{seconds(split.cpu)} of processor time in all threads; loading took "
    note += f"{seconds(report.throughput.load_s)} before"
    return Table("Where the time went", ("", "time", "share"), rows, note=note)


def speculation(report: Report) -> Table:
    drafts = report.speculation
    rows = []
    if drafts.acceptance is not None:
        rows += [
            ("drafts verified", count(drafts.drafted_tokens)),
            ("of them accepted", f"{count(drafts.accepted_tokens)} ({percent(drafts.acceptance)})"),
        ]
    if drafts.accepted_length is not None:
        rows += [
            ("drafts made", count(drafts.proposed_tokens)),
            ("drafts verified per answer and step", count(drafts.mean_verify_length)),
            ("tokens per answer and step", count(drafts.accepted_length)),
        ]
    for place, share in enumerate(drafts.acceptance_per_position, 1):
        verified = drafts.verified_per_position[place - 1]
        rows.append((f"position {place} accepted", f"{percent(share)} of {count(verified)}"))
    if drafts.calibration_error is not None:
        rows.append(("calibration error", f"{drafts.calibration_error:.3f}"))
    return Table("Speculation", (), rows)


def engine(report: Report) -> Table:
    stats = report.engine
    if stats is None:
        return Table("Engine", (), [])
    mean = stats.num_decode_rows / stats.num_decode_steps if stats.num_decode_steps else 0
    rows = [
        ("steps", f"{count(stats.num_steps)}, {count(stats.num_decode_steps)} of them decode"),
        ("answers per decode step", count(round(mean, 2))),
        ("prompt tokens computed", count(stats.num_prefill_tokens)),
        ("preemptions", count(report.preemptions)),
    ]
    if stats.num_blocks:
        share = percent(stats.peak_blocks / stats.num_blocks)
        rows.append(("cache blocks at the peak", f"{count(stats.peak_blocks)} ({share})"))
    if stats.expert_imbalance_before is not None:
        before, after = stats.expert_imbalance_before, stats.expert_imbalance_after
        rows.append(("busiest rank over the mean", f"{before:.2f} before, {after:.2f} after moves"))
    rows += [(name, note) for name, note in report.engine_notes.items()]
    return Table("Engine", (), rows)


def memory(plan: MemoryPlan | None) -> Table:
    if plan is None:
        return Table("Memory", (), [])
    blocks = f"{count(plan.num_blocks)} blocks of {plan.block_size} tokens"
    rows = [
        ("weights", size(plan.weight_bytes), "as the checkpoint stores them"),
        ("global KV", size(plan.num_blocks * plan.block_bytes), blocks),
        ("rings", size(plan.max_num_seqs * plan.slot_bytes), f"of {plan.max_num_seqs} answers"),
    ]
    if plan.snapshot_bytes:
        rows.append(("saved rings", size(plan.snapshot_bytes), "at most, for shared prefixes"))
    return Table("Memory", (), rows)


def cost(report: Report) -> Table:
    found = report.cost
    rows = []
    if found.total is not None:
        rows += [("price", short(found.total)), ("per hour", short(found.per_hour or 0.0))]
    if found.per_million_tokens is not None:
        rows.append(("per million answer tokens", short(found.per_million_tokens)))
    for name, whole, each in (
        ("energy of the processor", found.energy_j, found.energy_per_token_j),
        ("energy of the GPUs", found.gpu_energy_j, found.gpu_energy_per_token_j),
    ):
        if whole is not None:
            rows.append((name, f"{short(whole)} J"))
        if each is not None:
            rows.append((f"{name}, per answer token", f"{short(each)} J"))
    return Table("Cost", (), rows)


def changed_settings(report: Report) -> Table:
    rows = [
        (name, value(setting.value), setting.origin)
        for name, setting in report.settings.items()
        if setting.origin != "default"
    ]
    return Table("Settings that were given", ("", "value", "from"), rows, is_numeric=False)


def all_settings(report: Report) -> Table:
    rows = [
        (name, value(setting.value), setting.origin) for name, setting in report.settings.items()
    ]
    return Table("All settings", ("", "value", "from"), rows, is_numeric=False)


def manifest(report: Report) -> Table:
    machine = report.machine
    total_memory = machine.memory_bytes
    rows = [
        ("input", f"{report.input.name} ({report.input.format})"),
        ("digest of its rows", report.input.digest or "–"),
        ("output", report.output),
        ("model", report.model),
        ("fingerprint of its files", report.model_fingerprint or "–"),
        ("seed", str(report.seed)),
        ("began", report.started),
        ("processor", f"{machine.cpu}, {machine.cores} cores"),
        ("memory", "–" if total_memory is None else size(total_memory)),
        *report.versions.items(),
    ]
    return Table("Manifest", (), rows, is_numeric=False)


def meanings(report: Report) -> Table:
    return Table("What the numbers mean", (), list(report.definitions.items()), is_numeric=False)


def value(setting: object) -> str:
    """A setting's value as in YAML."""
    if setting is None:
        return "none"
    return setting if isinstance(setting, str) else json.dumps(setting, ensure_ascii=False)


def shares_of_time(report: Report) -> list[tuple[str, float]]:
    names = [field.name for field in fields(report.time_s) if field.name in TIME_NAMES]
    return [(TIME_NAMES[name], getattr(report.time_s, name)) for name in names]


def _spread(spread: Distribution, show: Callable[[float | None], str]) -> tuple[str, ...]:
    values = (spread.p50, spread.p90, spread.p99, spread.max)
    return tuple(show(number) for number in values)
