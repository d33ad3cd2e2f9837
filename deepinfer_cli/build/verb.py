"""The flags of ``deepinfer build``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deepinfer_cli.helptext import Command

_BUILD_HELP = """\
Compile all kernels of a model ahead of time, on any machine.

Examples:
  deepinfer build
  deepinfer build --arch sm90a,sm100a,sm103a --config full -o kernels/
  deepinfer build --accelerator ascend --stage linalg

Prints the folder of each bundle; keeps bundles that exist already. Runs on
the same kind of GPU find them and compile nothing. Exit codes: 0 built, 1 a
kernel did not compile (or CANN is missing), 2 usage error.
"""


def add_build_verb(app: typer.Typer) -> None:
    def build_verb(
        accelerator: Annotated[
            str | None,
            typer.Option("--accelerator", metavar="NAME", show_default=False,
                         help="nvidia, ascend, or auto (what this machine has; nvidia if it has "
                         "none). Variable: DEEPINFER_ACCELERATOR."),
        ] = None,
        arch: Annotated[
            str | None,
            typer.Option("--arch", metavar="LIST", show_default=False,
                         help="sm90a, sm100a, sm103a or ascend950, separated by commas. Default: "
                         "this machine's GPUs, else all of the accelerator."),
        ] = None,
        model: Annotated[
            str,
            typer.Option("--config", metavar="MODEL", help="full, tiny (the model in the package), "
                         "a checkpoint folder, or its config.json. Default: full."),
        ] = "full",
        output: Annotated[
            Path | None,
            typer.Option("--output", "-o", metavar="DIR", show_default=False,
                         help="Folder for bundles. Default: the one that runs search."),
        ] = None,
        stage: Annotated[
            str,
            typer.Option("--stage", metavar="NAME", help="Last stage for ascend: linalg, "
                         "middle-end (on-chip memory laid out), or binary, which needs CANN. "
                         "Default: binary."),
        ] = "binary",
        jobs: Annotated[
            int | None,
            typer.Option("--jobs", "-j", metavar="N", show_default=False,
                         help="Compilers to run at a time. Default, and at most: one per core."),
        ] = None,
        json: Annotated[
            bool, typer.Option("--json", help="Describe the bundles as JSON on stdout.")
        ] = False,
        quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors.")] = False,
        debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    ) -> None:  # fmt: skip
        from .build import BuildRequest, build

        request = BuildRequest(
            accelerator=accelerator,
            arch=arch,
            config=model,
            output=output,
            stage=stage,
            jobs=jobs,
            json=json,
            quiet=quiet,
        )
        raise typer.Exit(build(request))

    build_verb.__doc__ = _BUILD_HELP
    app.command("build", cls=Command)(build_verb)
