"""The report as a single HTML file without scripts or external resources."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from pathlib import PurePath

from deepinfer_cli.report.report import Distribution, Report

from .svg import Bar, Range, area_chart, bar_chart, histogram_bars, range_chart
from .tables import (
    LATENCY_NAMES,
    Figure,
    Table,
    all_settings,
    all_tables,
    headline,
    key_figures,
    meanings,
    shares_of_time,
)
from .words import count, milliseconds, percent, seconds


def report_html(report: Report) -> str:
    """The whole page."""
    name = PurePath(report.output).name if report.output != "-" else "results on stdout"
    message = f'<p class="message">{escape(report.message)}</p>' if report.message else ""
    body = [
        f'<header><h1>{escape(name)} <span class="status {escape(report.status)}">'
        f"{escape(report.status)}</span></h1>",
        f'<p class="meta">{escape(headline(report))}</p>{message}</header>',
        figure_cards(key_figures(report)),
        _outcome(report),
        f'<section class="charts">{"".join(_charts(report))}</section>',
        f'<section class="tables">{"".join(map(html_table, all_tables(report)))}</section>',
        folded(all_settings(report)),
        folded(meanings(report)),
    ]
    return page(f"{name} · deepinfer", body)


def page(title: str, body: Iterable[str]) -> str:
    """A page with the style sheet embedded."""
    style = (files("deepinfer_cli.report.pages") / "style.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style></head>\n<body><main>\n"
        + "\n".join(part for part in body if part)
        + "\n</main></body></html>\n"
    )


def figure_cards(figures: Sequence[Figure]) -> str:
    cards = (
        f'<div class="figure"><b>{escape(figure.value)}</b><span>{escape(figure.label)}</span>'
        f"<small>{escape(figure.note)}</small></div>"
        for figure in figures
    )
    return f'<section class="figures">{"".join(cards)}</section>'


def html_table(table: Table) -> str:
    """One table with its title."""
    kind = "numeric" if table.is_numeric else "words"
    head = ""
    if table.head:
        cells = "".join(f"<th>{escape(cell)}</th>" for cell in table.head)
        head = f"<thead><tr>{cells}</tr></thead>"
    rows = (
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows
    )
    note = f'<p class="note">{escape(table.note)}.</p>' if table.note else ""
    return (
        f'<div class="table"><h2>{escape(table.title)}</h2><div class="scroll">'
        f'<table class="{kind}">{head}<tbody>{"".join(rows)}</tbody></table></div>{note}</div>'
    )


def folded(table: Table) -> str:
    """A long table, collapsed behind its title."""
    inner = html_table(table).replace(f"<h2>{escape(table.title)}</h2>", "")
    return f"<details><summary>{escape(table.title)}</summary>{inner}</details>"


def stacked_bar(parts: Sequence[tuple[str, float, str, str]], hint: str) -> str:
    """A bar of segments (label, value, shown value, css class), with a legend."""
    total = sum(value for _, value, _, _ in parts)
    shown = [part for part in parts if part[1] > 0]
    bars = (
        f'<i class="{kind}" style="flex-grow:{value / total:.5f}" '
        f'title="{escape(label)}: {escape(words)}"></i>'
        for label, value, words, kind in shown
    )
    legend = (
        f'<li><i class="{kind}"></i>{escape(label)} <b>{escape(words)}</b></li>'
        for label, _, words, kind in shown
    )
    return (
        f'<div class="stack" role="img" aria-label="{escape(hint)}">{"".join(bars)}</div>'
        f'<ul class="legend">{"".join(legend)}</ul>'
    )


def _outcome(report: Report) -> str:
    rows = report.rows
    if not rows.input:
        return '<p class="empty">The input has no rows.</p>'
    parts = [("answered", float(rows.results), _of(rows.results, rows.input), "good")]
    for place, (kind, num) in enumerate(report.errors.items()):
        parts.append((kind, float(num), _of(num, rows.input), f"bad{min(place, 2)}"))
    missing = rows.input - rows.results - rows.errors
    parts.append(("not finished", float(max(missing, 0)), _of(missing, rows.input), "faint"))
    bars = f"<h2>Rows</h2>{stacked_bar(parts, 'rows by result')}"
    split = shares_of_time(report)
    if sum(value for _, value in split) > 0:
        times = [(name, value, seconds(value), f"c{i}") for i, (name, value) in enumerate(split)]
        bars += f"<h2>Time</h2>{stacked_bar(times, 'time by phase')}"
    return f'<section class="outcome">{bars}</section>'


def _of(num: int, total: int) -> str:
    return f"{count(num)} ({percent(num / total)})"


def _charts(report: Report) -> Iterable[str]:
    timeline = report.timeline
    if len(timeline.rows) > 1 and any(timeline.completion_tokens):
        span = ("0", seconds(len(timeline.rows) * timeline.stretch_s))
        rates = [num / timeline.stretch_s for num in timeline.completion_tokens]
        yield _chart("Tokens of finished answers, per second", area_chart(rates, span, "tokens/s"))
    if report.engine is not None and len(report.engine.decode_batches) > 1:
        steps = ("first step", f"step {count(report.engine.num_decode_steps)}")
        drawn = area_chart(report.engine.decode_batches, steps, "answers per decode step")
        yield _chart("Answers computed at a time", drawn)
    for name, spread in (("Prompt", report.lengths.prompt), ("Answer", report.lengths.answer)):
        if spread.num > 1:
            bars = histogram_bars(spread.buckets, "tokens")
            drawn = bar_chart(bars, f"{name} lengths")
            yield _chart(f"{name} lengths, in tokens", drawn)
    if report.latency_ms.finished.num:
        named = [(getattr(report.latency_ms, key), name) for key, name in LATENCY_NAMES.items()]
        ranges = [_range(name, spread) for spread, name in named]
        drawn = range_chart(ranges, "latency of an answer", milliseconds)
        yield _chart("Latency: half, 90 %, 99 % of answers", drawn)
    if report.speculation.acceptance_per_position:
        yield _chart("Drafts accepted, by position", _positions(report))
    if len(report.speculation.verify_lengths) > 1 and any(report.speculation.verify_lengths):
        steps = ("first step", "last step")
        drawn = area_chart(report.speculation.verify_lengths, steps, "drafts verified over time")
        yield _chart("Drafts verified per answer and step", drawn)


def _chart(title: str, drawn: str) -> str:
    return f'<figure class="chart"><figcaption>{escape(title)}</figcaption>{drawn}</figure>'


def _range(name: str, spread: Distribution) -> Range:
    return Range(
        label=name,
        middle=float(spread.p50 or 0),
        most=float(spread.p90 or 0),
        high=float(spread.p99 or 0),
    )


def _positions(report: Report) -> str:
    drafts = report.speculation
    bars = [
        Bar(
            value=share or 0.0,
            label=str(place),
            hint=f"position {place}: {percent(share)} of {count(verified)} verified drafts",
        )
        for place, (share, verified) in enumerate(
            zip(drafts.acceptance_per_position, drafts.verified_per_position, strict=True), 1
        )
    ]
    return bar_chart(bars, "acceptance by position", 1.0, lambda share: f"{100 * share:.0f} %")
