"""Verbs about runs that are there: ``deepinfer status`` and ``deepinfer merge``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deepinfer_cli.helptext import Command


def add_run_verbs(app: typer.Typer) -> None:
    def status_verb(
        run: Annotated[
            str,
            typer.Argument(metavar="OUTPUT", help="The output of the run; its input or its "
                           ".partial folder do as well.", show_default=False),
        ],
        json: Annotated[bool, typer.Option("--json", help="JSON instead of words.")] = False,
    ) -> None:  # fmt: skip
        from .status import show_status

        show_status(run, as_json=json)

    def merge_verb(
        shards: Annotated[
            list[str] | None,
            typer.Argument(metavar="[SHARD]...", help="The results of all shards; without them, "
                           "those beside FILE that are named after it.", show_default=False),
        ] = None,
        output: Annotated[
            str, typer.Option("--output", "-o", metavar="FILE", help="A .jsonl or .parquet file.")
        ] = "",
        force: Annotated[bool, typer.Option("--force", help="Replace existing output.")] = False,
        json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    ) -> None:  # fmt: skip
        from deepinfer_cli.output.merge import merge

        if not output:
            raise typer.BadParameter("give the output: -o FILE")
        files = [Path(shard) for shard in shards or ()]
        raise typer.Exit(merge(Path(output), files, force=force, as_json=json))

    status_verb.__doc__ = _STATUS_HELP
    merge_verb.__doc__ = _MERGE_HELP
    app.command("status", cls=Command)(status_verb)
    app.command("merge", cls=Command)(merge_verb)


_STATUS_HELP = """\
Says how far a run is, whether it is alive, and how to go on.

Examples:
  deepinfer status answers.jsonl
  watch -n 5 deepinfer status answers.jsonl
  deepinfer status prompts.jsonl --json | jq .rows

Works from any shell, while the run goes on and after it was stopped, killed
or finished. Nothing is changed.
"""

_MERGE_HELP = """\
Puts the outputs of all shards together, in the order of the input.

Examples:
  deepinfer run prompts.jsonl -o out.jsonl --shard 1/2   # on one machine
  deepinfer run prompts.jsonl -o out.jsonl --shard 2/2   # on another
  deepinfer merge -o out.jsonl                           # out.1-of-2.jsonl ...

A shard that is missing, unfinished, given twice or from another run is
refused. Exit codes: 0 all rows answered, 2 usage, 3 some rows failed,
4 unusable shards, 5 output in use.
"""
