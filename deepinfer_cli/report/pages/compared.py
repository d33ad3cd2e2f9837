"""A comparison of two runs as tables, Markdown and HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from deepinfer_cli.report.comparison import AnswerComparison, Change, Comparison

from .html import html_table, page, stacked_bar
from .markdown import markdown_table
from .tables import Table, value
from .words import count, percent


def comparison_markdown(comparison: Comparison) -> str:
    lines = [f"# {comparison.a} (a) and {comparison.b} (b)", "", verdict(comparison), ""]
    return "\n".join([*lines, *map(markdown_table, comparison_tables(comparison))])


def comparison_html(comparison: Comparison) -> str:
    answers, bar = comparison.answers, ""
    if answers is not None and answers.in_both:
        parts = [
            (name, float(num), f"{count(num)} ({percent(num / answers.in_both)})", kind)
            for name, num, kind in (
                ("equal answers", answers.equal, "good"),
                ("different", answers.different, "bad0"),
            )
        ]
        bar = f'<section class="outcome">{stacked_bar(parts, "answers compared")}</section>'
    names = f"{escape(comparison.a)} <small>and</small> {escape(comparison.b)}"
    tables = "".join(map(html_table, comparison_tables(comparison)))
    body = [
        f"<header><h1>{names}</h1>",
        f'<p class="meta">{escape(verdict(comparison))}</p></header>',
        bar or '<p class="empty"></p>',
        f'<section class="tables">{tables}</section>',
    ]
    return page(f"{comparison.a} and {comparison.b} · deepinfer", body)


def verdict(comparison: Comparison) -> str:
    """One sentence on how many answers are equal."""
    answers = comparison.answers
    if answers is None:
        return "The answers are not compared: a result file does not exist."
    if not answers.in_both:
        return "The two runs have no row in common."
    if not answers.different:
        return f"All {count(answers.in_both)} common rows have the same answers."
    share = percent(answers.different / answers.in_both)
    shown = f"{count(answers.different)} of {count(answers.in_both)}"
    return f"{shown} common rows ({share}) have different answers."


def comparison_tables(comparison: Comparison) -> list[Table]:
    metrics = [
        (m.name, count(m.a), count(m.b), "" if m.ratio is None else f"{m.ratio:.3f}")
        for m in comparison.metrics
    ]
    tables = [
        Table("Numbers", ("", "a", "b", "b / a"), metrics),
        _answers(comparison.answers),
        _changes("Settings that differ", comparison.settings),
        _changes("Other differences", comparison.circumstances),
        _examples(comparison.answers),
    ]
    return [table for table in tables if table.rows]


def _answers(answers: AnswerComparison | None) -> Table:
    if answers is None:
        return Table("Answers", (), [])
    rows = [
        ("rows in both", count(answers.in_both)),
        ("only in a", count(answers.only_in_a)),
        ("only in b", count(answers.only_in_b)),
        ("answered the same", count(answers.equal)),
        ("answered differently", count(answers.different)),
    ]
    for name, ratio in (
        ("answer tokens", answers.completion_tokens_ratio),
        ("seconds", answers.total_s_ratio),
    ):
        if ratio is not None:
            rows.append((f"{name} of a row, median of b / a", f"{ratio:.3f}"))
    return Table("Answers, paired by row", (), rows)


def _changes(title: str, changes: Sequence[Change]) -> Table:
    rows = [(change.name, value(change.a), value(change.b)) for change in changes]
    return Table(title, ("", "a", "b"), rows, is_numeric=False)


def _examples(answers: AnswerComparison | None) -> Table:
    rows = [
        (example.id, f"{example.field}, character {example.at + 1}", example.a, example.b)
        for example in (answers.examples if answers is not None else ())
    ]
    return Table("Where answers differ", ("row", "from", "a", "b"), rows, is_numeric=False)
