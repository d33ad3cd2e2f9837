"""Registers ``doctor``."""

from __future__ import annotations

from typing import Annotated

import typer

from deepinfer_cli.helptext import Command
from deepinfer_cli.settings.flags import with_settings

_HELP = """\
Check what this machine has and whether a run would work on it.

Examples:
  deepinfer doctor
  deepinfer doctor --model /models/v4.1 --device cuda
  deepinfer doctor --json | jq '.checks[] | select(.state != "ok")'

Takes the flags of deepinfer run and checks everything short of loading the
weights. The output is safe to paste into a bug report: it shows no values of
settings or variables, and the home folder as ~. Exit codes: 0 a run would
start, 1 it would fail.
"""


def add_doctor(app: typer.Typer) -> None:
    def doctor_verb(
        config: Annotated[
            str | None, typer.Option("--config", metavar="FILE", help="Settings file; default "
                                     "./deepinfer.yaml.")
        ] = None,
        json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
        *,
        flags: dict[str, object],
    ) -> None:  # fmt: skip
        from .verb import doctor

        raise typer.Exit(doctor(flags, config, as_json=json))

    doctor_verb.__doc__ = _HELP
    app.command("doctor", cls=Command)(with_settings(doctor_verb))
