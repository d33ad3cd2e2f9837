"""The flags of ``deepinfer bench kernels``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deepinfer_cli.helptext import Command
from deepinfer_cli.run.console import make_console

from .options import check_file, count, option

_HELP = """\
Time the kernels of each family at the model's shapes, on one GPU.

A plain copy and library GEMMs are timed beside them.

FAMILY is attention, indexer, gemm, moe, rows (norms, streams, Engram),
sampling or drafts. Default: all.

Examples:
  deepinfer bench kernels
  deepinfer bench kernels attention moe -o kernels.json
"""


def add_kernels(bench_app: typer.Typer) -> None:
    def kernels_verb(
        families: Annotated[
            list[str] | None, typer.Argument(metavar="[FAMILY]...", show_default=False)
        ] = None,
        seed: Annotated[str, option("--seed", "Seed of the operands. [0]", "N")] = "0",
        output: Annotated[
            Path | None, option("--output", "Write all times here, as JSON.", "FILE", "-o")
        ] = None,
        json: Annotated[bool, typer.Option("--json", help="Print the times as JSON.")] = False,
        quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors.")] = False,
        debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    ) -> None:
        from .collected import exit_code
        from .kernel_times import kernels_json, kernels_page, time_kernels

        number = count("--seed", seed)
        if not 0 <= number < 2**63:
            raise typer.BadParameter(f"--seed {seed}: expected 0 to 2**63 - 1")
        check_file("--output", output)
        times, ended = time_kernels(families or (), number, make_console(quiet=quiet).say)
        text = kernels_json(times)
        print(text if json else kernels_page(times), end="", flush=True)
        if output is not None:
            output.write_text(text, encoding="utf-8")
        raise typer.Exit(exit_code(ended))

    kernels_verb.__doc__ = _HELP
    bench_app.command("kernels", cls=Command)(kernels_verb)
