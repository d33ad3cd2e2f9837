"""Tables as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from deepinfer_cli.report.report import Report

from .tables import Figure, Table, all_tables, headline, key_figures


def report_markdown(report: Report) -> str:
    """The report as a Markdown page."""
    title = f"# {report.output}: {report.status}" if report.output != "-" else f"# {report.status}"
    message = f"\n{report.message}\n" if report.message else ""
    figures = key_figures(report)
    return "\n".join(
        [title, message, headline(report), "", *map(_figure, figures), "", *tables(report)]
    )


def tables(report: Report) -> list[str]:
    return [markdown_table(table) for table in all_tables(report)]


def markdown_table(table: Table, level: int = 2) -> str:
    """One table with its title."""
    width = max(len(row) for row in table.rows)
    head: Sequence[str] = table.head or [""] * width
    rows = [_cells(row, width) for row in (head, *table.rows)]
    widths = [max(3, *(len(row[place]) for row in rows)) for place in range(width)]
    right = table.is_numeric and width > 1
    rule = ["-" * widths[0], *("-" * (w - right) + ":" * right for w in widths[1:])]
    lines = [f"{'#' * level} {table.title}", ""]
    for row in (rows[0], rule, *rows[1:]):
        padded = [
            cell.rjust(w) if right and place else cell.ljust(w)
            for place, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("| " + " | ".join(padded) + " |")
    if table.note:
        lines += ["", table.note + "."]
    return "\n".join(lines) + "\n"


def _figure(figure: Figure) -> str:
    note = f" ({figure.note})" if figure.note else ""
    return f"- **{figure.value}** {figure.label}{note}"


def _cells(row: Sequence[str], width: int) -> list[str]:
    shown = [" ".join(cell.split()).replace("|", "\\|") for cell in row]
    return shown + [""] * (width - len(shown))
