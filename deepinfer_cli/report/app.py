"""Registers ``report``; its implementation in ``verb`` is imported on use."""

from __future__ import annotations

from typing import Annotated

import typer

from deepinfer_cli.helptext import Command


def add_report(app: typer.Typer) -> None:
    @app.command("report", cls=Command)
    def report_verb(
        run: Annotated[
            str,
            typer.Argument(metavar="RUN", help="Output of a run, its .report.json or its "
                           ".partial folder; two runs are compared.", show_default=False),
        ],
        other: Annotated[str | None, typer.Argument(metavar="[RUN]", show_default=False)] = None,
        output: Annotated[
            list[str] | None,
            typer.Option("--output", "-o", metavar="FILE", show_default=False,
                         help="An .html, .md, .json or .prom file, or - for Markdown on stdout. "
                         "Repeatable. Default: RUN.report.html and RUN.report.md."),
        ] = None,
        force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
        json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
    ) -> None:  # fmt: skip
        """Turn the report of a run into a page, or compare two runs.

        Examples:
          deepinfer report answers.jsonl
          deepinfer report answers.jsonl -o - | less
          deepinfer report monday.jsonl tuesday.jsonl -o compared.html
          deepinfer report answers.jsonl -o /var/lib/node_exporter/answers.prom --force

        The page is a single file without scripts and has the numbers of
        RUN.report.json (docs/reports.md).
        """
        from .verb import compare_runs, report_run

        outputs = output or []
        if other is None:
            report_run(run, outputs, as_json=json, force=force)
        else:
            compare_runs(run, other, outputs, as_json=json, force=force)
