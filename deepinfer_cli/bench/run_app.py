"""The flags of ``deepinfer bench run``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deepinfer_cli.helptext import Command
from deepinfer_cli.run.console import make_console
from deepinfer_cli.settings.flags import with_settings

from .options import check_file, count, option

if TYPE_CHECKING:
    from deepinfer_cli.run.job import MakeEngine

_RUN_HELP = """\
Time whole runs over INPUT: reading, encoding, model, parsing and writing.

Examples:
  deepinfer bench run prompts.jsonl
  deepinfer bench run prompts.jsonl --rounds 5 --speculative 0 --max-num-seqs 64
"""


def add_run(bench_app: typer.Typer, make_engine: MakeEngine) -> None:
    def run_verb(
        source: Annotated[
            str, typer.Argument(metavar="INPUT", help="A prompt file.", show_default=False)
        ],
        rounds: Annotated[str, option("--rounds", "How many runs. [3]", "N")] = "3",
        output: Annotated[
            Path | None, option("--output", "Write the reports of all rounds here.", "FILE", "-o")
        ] = None,
        json: Annotated[bool, typer.Option("--json", help="Print the reports as JSON.")] = False,
        quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors.")] = False,
        debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
        *,
        flags: dict[str, object],
    ) -> None:
        from deepinfer_cli.run.verb import RunRequest, run
        from deepinfer_cli.settings.constraint import run_constraint
        from deepinfer_cli.settings.layers import resolve

        from .file_runs import run_often, runs_json, runs_page

        times = count("--rounds", rounds)
        if times < 1:
            raise typer.BadParameter(f"--rounds {rounds}: expected 1 or more")
        check_file("--output", output)
        resolved = resolve(flags)
        constraint = run_constraint(resolved)

        def once(answers: Path) -> int:
            request = RunRequest(
                source=source, output=str(answers), constraint=constraint, force=True, quiet=True
            )
            return run(request, resolved, make_engine)

        runs = run_often(source, times, once, make_console(quiet=quiet))
        print(runs_json(runs) if json else runs_page(runs), end="")
        if output is not None:
            output.write_text(runs_json(runs), encoding="utf-8")

    run_verb.__doc__ = _RUN_HELP
    bench_app.command("run", cls=Command)(with_settings(run_verb))
