"""Verbs for existing runs: ``deepinfer status`` and ``deepinfer merge``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deepinfer_cli.helptext import Command


def add_run_verbs(app: typer.Typer) -> None:
    def status_verb(
        run: Annotated[
            str,
            typer.Argument(metavar="OUTPUT", help="Output of the run; its input or its .partial "
                           "folder work, too.", show_default=False),
        ],
        json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    ) -> None:  # fmt: skip
        from .status import show_status

        show_status(run, as_json=json)

    def merge_verb(
        shards: Annotated[
            list[str] | None,
            typer.Argument(metavar="[SHARD]...", help="Results of all shards. Default: the files "
                           "beside FILE that --shard names after it.", show_default=False),
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
Show how far a run is, whether it is alive, and how to resume it.

Examples:
  deepinfer status answers.jsonl
  watch -n 5 deepinfer status answers.jsonl
  deepinfer status prompts.jsonl --json | jq .rows

Works from any shell, during the run and after it was stopped, was killed or
has finished. Changes nothing.
"""

_MERGE_HELP = """\
Combine the outputs of all shards, in the order of the input.

Examples:
  deepinfer run prompts.jsonl -o out.jsonl --shard 1/2   # on one machine
  deepinfer run prompts.jsonl -o out.jsonl --shard 2/2   # on another
  deepinfer merge -o out.jsonl                           # out.1-of-2.jsonl ...

Refuses shards that are missing, unfinished, given twice or from another run.
Exit codes: 0 all rows answered, 2 usage error, 3 some rows failed, 4 unusable
shards, 5 output in use.
"""
