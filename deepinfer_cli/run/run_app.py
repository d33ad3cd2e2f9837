"""The flags and help of ``deepinfer run``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from deepinfer_cli.helptext import Command
from deepinfer_cli.settings.flags import with_settings
from deepinfer_cli.settings.layers import resolve

if TYPE_CHECKING:  # --help must not import what a run needs
    from .job import MakeEngine


def add_run(app: typer.Typer, make_engine: MakeEngine) -> None:
    def run_verb(
        context: typer.Context,
        source: Annotated[
            str,
            typer.Argument(metavar="INPUT", help="JSONL (also .gz, .zst), CSV, Parquet, the folder "
                           "of a saved dataset, or - for stdin.", show_default=False),
        ],
        output: Annotated[
            str | None,
            typer.Option("--output", "-o", metavar="FILE", show_default=False,
                         help="A .jsonl or .parquet file, or - for stdout. Default: "
                         "prompts.out.jsonl beside prompts.jsonl; stdout for stdin."),
        ] = None,
        force: Annotated[bool, typer.Option("--force", help="Replace existing output.")] = False,
        retry_failed: Annotated[
            bool, typer.Option("--retry-failed", help="Answer the failed rows of OUTPUT again.")
        ] = False,
        config: Annotated[
            str | None,
            typer.Option("--config", metavar="FILE",
                         help="Settings file; default ./deepinfer.yaml."),
        ] = None,
        json: Annotated[
            bool, typer.Option("--json", help="Print the report as JSON on stdout.")
        ] = False,
        quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors.")] = False,
        debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
        *,
        flags: dict[str, object],
    ) -> None:  # fmt: skip
        from deepinfer_cli.settings.constraint import run_constraint

        from .launched import run_as_rank
        from .verb import RunRequest, run

        resolved = resolve(flags, config=config)
        request = RunRequest(
            source=source,
            output=output,
            constraint=run_constraint(resolved),
            force=force,
            retry_failed=retry_failed,
            arguments=context.obj or (),
            json=json,
            quiet=quiet,
        )
        raise typer.Exit(run_as_rank(resolved, lambda: run(request, resolved, make_engine)))

    run_verb.__doc__ = _RUN_HELP
    app.command("run", cls=Command)(with_settings(run_verb))


_RUN_HELP = """\
Answer every row of INPUT; write results, failed rows and a report.

Examples:
  deepinfer run prompts.jsonl -o answers.jsonl --max-tokens 256
  deepinfer run qa.csv --map prompt=question --carry answer -o out.parquet
  cat prompts.jsonl | deepinfer run - --temperature 0 | jq .content

Results go to FILE, failed rows to FILE.errors.jsonl and the report to
FILE.report.json. Give the same command again to resume a run that was
stopped; deepinfer status shows its progress, deepinfer config show all
defaults. Exit codes: 0 all rows answered, 1 failure, 2 usage error, 3 some
rows failed, 4 unusable input, 5 output in use, 6 no progress, 75/129/130/143
stopped early.
"""
