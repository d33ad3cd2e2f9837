"""Registers ``plan``; its implementation in ``verb`` is imported on use."""

from __future__ import annotations

from typing import Annotated

import typer

from deepinfer_cli.helptext import Command
from deepinfer_cli.settings.as_given import errors_as_given
from deepinfer_cli.settings.flags import with_settings
from deepinfer_cli.settings.layers import resolve
from deepinfer_cli.settings.values import SECONDS

_HELP = """\
Predict what a run would do: rows, errors, lengths, memory, steps and time.

Examples:
  deepinfer plan prompts.jsonl
  deepinfer plan prompts.jsonl --max-tokens 512 --calibrate 30s
  deepinfer plan prompts.jsonl --like yesterday.jsonl --json | jq .estimate

Reads and encodes every row as a run with the same flags would, and writes
nothing. Then it answers some of them for a few seconds to measure this
machine (--calibrate), or takes the times of an earlier run (--like). Exit
codes: 0 all rows can be answered, 3 some cannot, 2 and 4 as for run.
"""


def add_plan(app: typer.Typer) -> None:
    def plan_verb(
        source: Annotated[
            str,
            typer.Argument(metavar="INPUT", help="Any input of deepinfer run.", show_default=False),
        ],
        calibrate: Annotated[
            str,
            typer.Option(metavar="TIME", help="Time to spend on measuring; 0 measures nothing and "
                         "loads no weights. Default: 10s.", show_default=False),
        ] = "10s",
        like: Annotated[
            str | None,
            typer.Option(metavar="RUN", help="Use the times and answer lengths of this run "
                         "instead.", show_default=False),
        ] = None,
        config: Annotated[
            str | None,
            typer.Option(metavar="FILE", help="Settings file; default ./deepinfer.yaml."),
        ] = None,
        json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
        quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
        debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
        *,
        flags: dict[str, object],
    ) -> None:  # fmt: skip
        try:
            seconds = SECONDS.parse(calibrate)
        except ValueError:
            raise typer.BadParameter(
                f"--calibrate {calibrate}: expected {SECONDS.expects}"
            ) from None
        assert isinstance(seconds, int | float)
        resolved = resolve(flags, config=config)
        from .verb import plan

        with errors_as_given(resolved.origins):
            code = plan(
                source, resolved, like=like, seconds=float(seconds), as_json=json, quiet=quiet
            )
        raise typer.Exit(code)

    plan_verb.__doc__ = _HELP
    app.command("plan", cls=Command)(with_settings(plan_verb))
