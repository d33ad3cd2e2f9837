"""The flags of ``deepinfer bench``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deepinfer_cli.console import make_console
from deepinfer_cli.flags import with_settings
from deepinfer_cli.helptext import Command, Group
from deepinfer_cli.values import parse_count, parse_number

if TYPE_CHECKING:
    from deepinfer_cli.job import MakeEngine

_HELP = """\
Measures this machine, and says what a deployment could do at most.

On a GPU one rank's share of DeepSeek-V4.1-Flash runs with random weights; the
link to other ranks is modelled. On a CPU the engine answers with the embedded
model. Beside it stand the limits of the full model on a named device.

Examples:
  deepinfer bench
  deepinfer bench --ep 64 --link rdma400 --gpu-hour-price 2.5
  deepinfer bench --preset launch --device-profile gb300 -o launch
  deepinfer bench --phase decode --requests 8,256 --compare launch
"""

_PHASES = {"decode": ("decode",), "prefill": ("prefill",), "both": ("decode", "prefill")}


_RUN_HELP = """\
Answers INPUT several times and throws the answers away: the speed of reading,
encoding, the model, parsing and writing together.

Examples:
  deepinfer bench run prompts.jsonl
  deepinfer bench run prompts.jsonl --rounds 5 --speculative 0 --max-num-seqs 64
"""


def add_bench_verbs(app: typer.Typer, make_engine: MakeEngine) -> None:
    bench_app = typer.Typer(cls=Group, help=_HELP, context_settings=app.info.context_settings)
    app.add_typer(bench_app, name="bench")
    _add_run(bench_app, make_engine)

    @bench_app.callback(invoke_without_command=True)
    def bench_verb(
        context: typer.Context,
        phase: Annotated[str, _option("--phase", "decode, prefill or both.", "PHASE")] = "both",
        preset: Annotated[
            str | None, _option("--preset", "launch: the published protocol (context 131,072, "
                                "EP64 decode, EP4 prefill, 75 % acceptance, 140 replayed tokens).",
                                "NAME")
        ] = None,
        ep: Annotated[
            str | None, _option("--ep", "Ranks that share the experts. [8]", "N")
        ] = None,
        requests: Annotated[
            str | None, _option("--requests", "Requests per rank, a list. [8,16,60,128,256]", "N,N")
        ] = None,
        context_length: Annotated[
            str | None, _option("--context", "Tokens of a request. [131072]", "N")
        ] = None,
        tokens: Annotated[
            str | None, _option("--tokens", "Prompt tokens per rank, a list. [4096,16384,65536]",
                                "N,N")
        ] = None,
        drafts: Annotated[
            str | None, _option("--drafts", "Drafts verified per step. [5]", "N")
        ] = None,
        acceptance: Annotated[
            str | None, _option("--acceptance", "Chance that a draft is accepted. [75%]", "SHARE")
        ] = None,
        link: Annotated[
            str | None, _option("--link", "nvlink, nvlink5, rdma400 or rdma800. [the device's]",
                                "NAME")
        ] = None,
        device_profile: Annotated[
            str, _option("--device-profile", "h200, b200, gb300 or ascend950dt.", "NAME")
        ] = "h200",
        model: Annotated[
            str | None, _option("--model", "Measure this checkpoint, not the embedded one.",
                                "FOLDER")
        ] = None,
        device: Annotated[
            str, _option("--device", "auto, cpu or cuda.", "NAME")
        ] = "auto",
        steps: Annotated[
            str | None, _option("--steps", "Steps per row on a GPU. [20]", "N")
        ] = None,
        prompts: Annotated[
            Path | None, _option("--prompts", "Measure with these prompts (JSONL).", "FILE")
        ] = None,
        gpu_hour_price: Annotated[
            str | None, _option("--gpu-hour-price", "Adds cost per million tokens.", "PRICE")
        ] = None,
        output: Annotated[
            Path | None, _option("--output", "Keep bench.json and bench.md here.", "FOLDER", "-o")
        ] = None,
        plots: Annotated[
            bool, typer.Option("--plots", help="And pictures (needs matplotlib).")
        ] = False,
        compare: Annotated[
            Path | None, _option("--compare", "Ratios to an earlier result.", "FOLDER")
        ] = None,
        seed: Annotated[str, _option("--seed", "Of everything random.", "N")] = "0",
        json: Annotated[bool, typer.Option("--json", help="Print bench.json on stdout.")] = False,
        quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say only errors.")] = False,
        debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    ) -> None:  # fmt: skip
        if context.invoked_subcommand is not None:
            return
        if phase not in _PHASES:
            raise typer.BadParameter(f"--phase {phase}: expected decode, prefill or both")
        if preset not in (None, "launch"):
            raise typer.BadParameter(f"--preset {preset}: expected launch")
        if plots and output is None:
            raise typer.BadParameter("--plots needs a folder: add -o FOLDER")
        sizes = None if requests is None else _counts("--requests", requests)
        given: dict[str, Any] = {
            "phases": _PHASES[phase],
            "device_profile": device_profile,
            "seed": _count("--seed", seed),
            "requests": sizes,
            "context": None if context_length is None else _count("--context", context_length),
            "tokens": None if tokens is None else _counts("--tokens", tokens),
            "num_drafts": None if drafts is None else _count("--drafts", drafts),
            "acceptance": None if acceptance is None else _number("--acceptance", acceptance),
            "link": link,
            "num_steps": None if steps is None else _count("--steps", steps),
        }
        if ep is not None:
            given["decode_ranks"] = given["prefill_ranks"] = _count("--ep", ep)
        price = None if gpu_hour_price is None else _number("--gpu-hour-price", gpu_hour_price)

        from deepinfer.bench.plan import LAUNCH_REPLAY, BenchPlan

        from .verb import BenchRequest, bench, read_prompts

        plan = BenchPlan()
        if preset == "launch":
            plan = dataclasses.replace(
                plan, decode_ranks=64, prefill_ranks=4, replay_tokens=LAUNCH_REPLAY
            )
        plan = dataclasses.replace(
            plan, **{name: value for name, value in given.items() if value is not None}
        )
        request = BenchRequest(
            plan=plan,
            engine_requests=sizes,
            prompts=None if prompts is None else read_prompts(prompts),
            model=model,
            device=device,
            output=output,
            compare=compare,
            price_per_hour=price,
            with_plots=plots,
            as_json=json,
        )
        raise typer.Exit(bench(request, make_console(quiet=quiet)))


def _add_run(bench_app: typer.Typer, make_engine: MakeEngine) -> None:
    def run_verb(
        source: Annotated[
            str, typer.Argument(metavar="INPUT", help="A prompt file.", show_default=False)
        ],
        rounds: Annotated[str, _option("--rounds", "How often. [3]", "N")] = "3",
        output: Annotated[
            Path | None, _option("--output", "Keep the reports of all rounds here.", "FILE", "-o")
        ] = None,
        json: Annotated[bool, typer.Option("--json", help="Print the reports as JSON.")] = False,
        quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say only errors.")] = False,
        debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
        *,
        flags: dict[str, object],
    ) -> None:
        from deepinfer_cli.constraint import run_constraint
        from deepinfer_cli.run import RunRequest, run
        from deepinfer_cli.settings import resolve

        from .file_runs import run_often, runs_json, runs_page

        count = _count("--rounds", rounds)
        if count < 1:
            raise typer.BadParameter(f"--rounds {rounds}: expected 1 or more")
        resolved = resolve(flags)
        constraint = run_constraint(resolved.settings)

        def once(answers: Path) -> int:
            request = RunRequest(
                source=source, output=str(answers), constraint=constraint, force=True, quiet=True
            )
            return run(request, resolved, make_engine)

        runs = run_often(source, count, once, make_console(quiet=quiet))
        print(runs_json(runs) if json else runs_page(runs), end="")
        if output is not None:
            output.write_text(runs_json(runs), encoding="utf-8")

    run_verb.__doc__ = _RUN_HELP
    bench_app.command("run", cls=Command)(with_settings(run_verb))


def _option(flag: str, help: str, metavar: str, *short: str) -> Any:
    return typer.Option(flag, *short, metavar=metavar, help=help, show_default=False)


def _counts(flag: str, text: str) -> tuple[int, ...]:
    return tuple(_count(flag, part) for part in text.split(","))


def _count(flag: str, text: str) -> int:
    try:
        return parse_count(text.strip())
    except ValueError:
        raise typer.BadParameter(
            f"{flag} {text}: expected whole numbers, like 256 or 64k"
        ) from None


def _number(flag: str, text: str) -> float:
    try:
        return parse_number(text)
    except ValueError:
        raise typer.BadParameter(f"{flag} {text}: expected a number, like 0.75 or 75%") from None
