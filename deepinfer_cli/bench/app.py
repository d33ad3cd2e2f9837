"""The flags of ``deepinfer bench``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deepinfer_cli.helptext import Group
from deepinfer_cli.run.console import make_console
from deepinfer_cli.settings.as_given import errors_as_given

from .kernels_app import add_kernels
from .options import amount, option
from .plan_flags import origins, plan_fields
from .run_app import add_run

if TYPE_CHECKING:
    from deepinfer_cli.run.job import MakeEngine

_HELP = """\
Measure this machine, and compute the limits of a deployment.

Each GPU runs one rank's share of DeepSeek-V4.1-Flash with random weights; the
link to ranks that are not present is modeled. On a CPU, the engine answers
with the embedded model. Results are shown beside the limits of the full model
on a named device.

Examples:
  deepinfer bench
  deepinfer bench --ep 64 --link rdma400 --gpu-hour-price 2.5
  deepinfer bench --preset launch --device-profile gb300 -o launch
  deepinfer bench --phase decode --requests 8,256 --compare launch
"""


def add_bench_verbs(app: typer.Typer, make_engine: MakeEngine) -> None:
    bench_app = typer.Typer(cls=Group, help=_HELP, context_settings=app.info.context_settings)
    app.add_typer(bench_app, name="bench")
    add_run(bench_app, make_engine)
    add_kernels(bench_app)

    @bench_app.callback(invoke_without_command=True)
    def bench_verb(
        context: typer.Context,
        phase: Annotated[str, option("--phase", "decode, prefill or both.", "PHASE")] = "both",
        preset: Annotated[
            str | None, option("--preset", "launch: the published protocol (context 131,072, "
                                "EP64 decode, EP4 prefill, 75 % acceptance, 140 replayed tokens).",
                                "NAME")
        ] = None,
        ep: Annotated[
            str | None, option("--ep", "Ranks that split the experts, a list. [8]", "N,N")
        ] = None,
        requests: Annotated[
            str | None, option("--requests", "Requests per rank, a list. [8,16,60,128,256]", "N,N")
        ] = None,
        context_length: Annotated[
            str | None, option("--context", "Context length of each request. [131072]", "N")
        ] = None,
        tokens: Annotated[
            str | None, option("--tokens", "Prompt tokens per rank, a list. [4096,16384,65536]",
                                "N,N")
        ] = None,
        drafts: Annotated[
            str | None, option("--drafts", "Drafts verified per request and step, a list; auto: as "
                                "many as pay off. [auto,5]", "N,N")
        ] = None,
        modes: Annotated[
            str | None, option("--modes", "More prefill modes to time: exact, batch-invariant or "
                                "none. [exact,batch-invariant]", "LIST")
        ] = None,
        routing: Annotated[
            str | None, option("--routing", "even, skewed, balanced (by EPLB), a list. [even]",
                                "LIST")
        ] = None,
        acceptance: Annotated[
            str | None, option("--acceptance", "Probability that a draft is accepted. [75%]",
                                "SHARE")
        ] = None,
        expert_weights: Annotated[
            str | None, option("--expert-weights", "fp4, fp8, or auto (fp8 where each expert gets "
                               "many tokens). [auto]", "FORM")
        ] = None,
        output_projection: Annotated[
            str | None, option("--output-projection", "Inputs of attention's output projection: "
                               "bf16 or fp8. [bf16]", "FORM")
        ] = None,
        link: Annotated[
            str | None, option("--link", "nvlink, nvlink5, rdma400 or rdma800. [that of the "
                                "device]",
                                "NAME")
        ] = None,
        device_profile: Annotated[
            str, option("--device-profile", "Device whose limits to compute: h200, b200, gb300 or "
                                "ascend950dt. [h200]", "NAME")
        ] = "h200",
        model: Annotated[
            str | None, option("--model", "Checkpoint to measure instead of the embedded model.",
                                "FOLDER")
        ] = None,
        device: Annotated[
            str, option("--device", "auto (an H100 or H200 if there is one, else the CPU), "
                                "cpu or cuda. [auto]", "NAME")
        ] = "auto",
        steps: Annotated[
            str | None, option("--steps", "Steps timed per row, on a GPU. [20]", "N")
        ] = None,
        prompts: Annotated[
            Path | None, option("--prompts", "Take prompts or their lengths from this JSONL "
                                "file.", "FILE")
        ] = None,
        gpu_hour_price: Annotated[
            str | None, option("--gpu-hour-price", "Add the cost per million tokens.", "PRICE")
        ] = None,
        output: Annotated[
            Path | None, option("--output", "Write bench.json and bench.md to this folder.",
                                "FOLDER", "-o")
        ] = None,
        plots: Annotated[
            bool, typer.Option("--plots", help="Write plots, too (needs matplotlib).")
        ] = False,
        compare: Annotated[
            Path | None, option("--compare", "Show ratios to this earlier result.", "FOLDER")
        ] = None,
        seed: Annotated[str | None, option("--seed", "Seed of everything random.", "N")] = None,
        json: Annotated[bool, typer.Option("--json", help="Print bench.json on stdout.")] = False,
        quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors.")] = False,
        debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    ) -> None:  # fmt: skip
        if context.invoked_subcommand is not None:
            return
        if plots and output is None:
            raise typer.BadParameter("--plots needs a folder: add -o FOLDER")
        given = {
            "--phase": phase, "--ep": ep, "--requests": requests, "--context": context_length,
            "--tokens": tokens, "--drafts": drafts, "--modes": modes, "--routing": routing,
            "--acceptance": acceptance, "--expert-weights": expert_weights,
            "--output-projection": output_projection, "--link": link,
            "--device-profile": device_profile, "--steps": steps, "--seed": seed,
        }  # fmt: skip
        fields = plan_fields(preset, given)
        price = None if gpu_hour_price is None else amount("--gpu-hour-price", gpu_hour_price)

        from deepinfer.bench.plan import BenchPlan

        from .prompts import read_prompts
        from .verb import BenchRequest, bench

        with errors_as_given(origins(given) | {"device": "--device"}):
            request = BenchRequest(
                plan=BenchPlan(**fields),
                flags=tuple(flag for flag, text in given.items() if text is not None),
                prompts=None if prompts is None else read_prompts(prompts),
                model=model,
                device=device,
                output=output,
                compare=compare,
                price_per_hour=price,
                with_plots=plots,
                as_json=json,
            )
            code = bench(request, make_console(quiet=quiet))
        raise typer.Exit(code)
