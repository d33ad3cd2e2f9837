"""The report as a short table for the terminal."""

from __future__ import annotations

from collections.abc import Mapping

from deepinfer.errors import on_one_line
from deepinfer_cli.run.console import duration

from .report import Distribution, Report, RowCounts, Speculation


def summary_lines(report: Report) -> list[tuple[str, str]]:
    """(label, text) for each line of the table, without empty lines."""
    rows, tokens, speed = report.rows, report.tokens, report.throughput
    lines = []
    if report.status != "finished":
        lines.append((report.status, report.message or ""))
    finished = rows.results + rows.errors
    done = f"{finished:,} of {rows.input:,} read"
    if report.status != "finished":
        done += " so far"
        if finished == rows.input:
            done = f"{finished:,} done so far"
    if rows.resumed:
        done += f", {rows.resumed:,} of them by an earlier part of this run"
    lines.append(("rows", f"{done}, in {duration(speed.load_s + speed.answer_s)}"))
    answers = sum(report.finish_reasons.values())
    of_answers = f" with {answers:,} answers" if answers > rows.results else ""
    results = f"{rows.results:,}{of_answers}  {_counts(report.finish_reasons)}"
    lines.append(("results", results))
    if rows.errors:
        lines.append(("errors", f"{rows.errors:,}  {_counts(report.errors)}"))
    if report.constraints:
        lines.append(("constraints", _counts(report.constraints)))
    if report.warnings:
        lines.append(("warnings", _counts(report.warnings)))
    if report.notes:
        lines.append(("notes", f"{_counts(report.notes)} (the notes of each row say more)"))
    if rows.results:
        cached = f" ({tokens.cached_tokens:,} cached)" if tokens.cached_tokens else ""
        thought = tokens.reasoning_tokens
        thinking = f" ({thought:,} of thinking)" if thought else ""
        answer = f"{tokens.completion_tokens:,} answer{thinking}"
        lines.append(("tokens", f"{tokens.prompt_tokens:,} prompt{cached}, {answer}"))
        lengths = report.lengths
        both = f"{_lengths('prompt', lengths.prompt)}, {_lengths('answer', lengths.answer)}"
        lines.append(("lengths", both))
    if speed.rows_per_s:
        per_second = speed.completion_tokens_per_s
        place = f" on {report.device}" if report.device else ""
        rates = f"{per_second:,.0f} tokens/s, {speed.rows_per_s:,.1f} rows/s"
        lines.append(("speed", rates + place))
    if (drafts := report.speculation).acceptance is not None:
        lines.append(("drafts", _drafts(drafts)))
    if (engine := report.engine) is not None and engine.num_out_of_memory:
        times = f"{engine.num_out_of_memory:,} steps did not fit and were made smaller"
        lines.append(
            ("memory", f"{times}; at most {engine.most_running:,} answers at a time since")
        )
    if report.status == "finished" and report.output != "-":
        lines.append(("files", f"{report.output}  (+ .report.json{_errors_file(rows)})"))
    return [(label, on_one_line(text.rstrip())) for label, text in lines]


def _drafts(drafts: Speculation) -> str:
    """The effect of speculation, compared with one token per step and answer without drafts."""
    right = f"{drafts.acceptance:.0%} of drafts accepted"
    if drafts.accepted_length is None:
        return right
    return f"{right}: {drafts.accepted_length:.1f} tokens per step instead of 1"


def _errors_file(rows: RowCounts) -> str:
    return ", .errors.jsonl" if rows.errors else ""


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def _lengths(name: str, lengths: Distribution) -> str:
    if lengths.p50 is None or lengths.max is None:
        return f"{name} none"
    return f"{name} {lengths.p50:,} median, {lengths.max:,} longest"
