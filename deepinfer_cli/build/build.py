"""``deepinfer build``: compiles the kernels ahead of time, and says what came out."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepinfer.errors import ConfigError
from deepinfer.kernels.targets import ASCEND_TARGETS, NVIDIA_TARGETS, check_targets, nvidia_target

ACCELERATORS = ("auto", "nvidia", "ascend")
STAGES = ("linalg", "middle-end", "binary")
# Bytes of stack up to which a kernel is as fast as without: eight registers.
MOST_STACK = 32
_PLAIN_SECONDS = 5.0

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    """What was asked for on the command line; None where nothing was."""

    accelerator: str | None
    arch: str | None
    config: str
    output: Path | None
    stage: str
    jobs: int | None
    json: bool
    quiet: bool


def build(request: BuildRequest, environment: Mapping[str, str] = os.environ) -> int:
    """Make the bundles; their folders go to stdout.  Raises: ConfigError, EngineError."""
    from deepinfer.kernel_build import build_kernels
    from deepinfer.kernels.bundle import default_store

    accelerator = _accelerator(request, environment)
    targets = _targets(request.arch, accelerator)
    if request.stage not in STAGES:
        raise ConfigError(f"--stage {request.stage!r}: expected {' or '.join(STAGES)}")
    if request.jobs is not None and request.jobs < 1:
        raise ConfigError(f"--jobs {request.jobs}: expected at least 1")
    store = request.output or default_store()
    started = time.perf_counter()
    reports = []
    with _progress(quiet=request.quiet) as progress:
        for target in targets:
            built = build_kernels(
                request.config,
                target,
                store,
                stage=request.stage,
                jobs=request.jobs,
                progress=progress,
            )
            describe = _nvidia_report if accelerator == "nvidia" else _ascend_report
            reports.append(describe(built.bundle, was_there=built.was_there))
    if request.json:
        print(json.dumps(reports, indent=1))
    else:
        for report in reports:
            print(report["folder"])
    if not request.quiet:
        _summarize(reports, time.perf_counter() - started)
    return 0 if all(report["is_complete"] for report in reports) else 1


def _accelerator(request: BuildRequest, environment: Mapping[str, str]) -> str:
    asked = request.accelerator
    name = asked or environment.get("DEEPINFER_ACCELERATOR") or "auto"
    if name not in ACCELERATORS:
        source = "--accelerator " if asked else "DEEPINFER_ACCELERATOR="
        raise ConfigError(f"{source}{name!r}: expected {', '.join(ACCELERATORS)}")
    if name != "auto":
        return name
    if request.arch is not None:
        return "ascend" if request.arch.startswith("ascend") else "nvidia"
    has_npu = shutil.which("npu-smi") or "ASCEND_HOME_PATH" in environment
    return "ascend" if has_npu and not shutil.which("nvidia-smi") else "nvidia"


def _targets(asked: str | None, accelerator: str) -> list[str]:
    """Those asked for, else those of this machine's GPUs, else all."""
    if asked is None:
        if accelerator == "ascend":
            return list(ASCEND_TARGETS)
        return _machine_targets() or list(NVIDIA_TARGETS)
    names = list(dict.fromkeys(name.strip() for name in asked.split(",") if name.strip()))
    if not names:
        raise ConfigError("--arch names nothing: give one or more of " + ", ".join(NVIDIA_TARGETS))
    check_targets(names, accelerator)
    return names


def _machine_targets() -> list[str]:
    """What this machine's GPUs are, asked of the driver's tool: torch would take seconds."""
    command = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        text = subprocess.run(
            command, capture_output=True, text=True, timeout=20, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    pairs = (line.strip().partition(".") for line in text.splitlines())
    found = [
        nvidia_target((int(major), int(minor)))
        for major, _, minor in pairs
        if major.isdecimal() and minor.isdecimal()
    ]
    return list(dict.fromkeys(name for name in found if name))


def _nvidia_report(bundle: Any, *, was_there: bool) -> dict[str, Any]:
    kernels = bundle.kernels
    return _common(bundle, was_there) | {
        "most_registers": max((kernel["registers"] for kernel in kernels), default=0),
        "most_stack_bytes": max((kernel["stack_bytes"] for kernel in kernels), default=0),
        "spilling": {
            kernel["kernel"]: kernel["stack_bytes"]
            for kernel in sorted(kernels, key=lambda kernel: kernel["stack_bytes"])
            if kernel["stack_bytes"] > MOST_STACK
        },
        "most_shared_bytes": max((kernel["shared_bytes"] for kernel in kernels), default=0),
        "is_complete": True,
    }


def _ascend_report(bundle: Any, *, was_there: bool) -> dict[str, Any]:
    depths = [_depth(kernel["stage"]) for kernel in bundle.kernels]
    wanted = bundle.identity.stage
    short = [
        {"kernel": kernel["kernel"], "stage": kernel["stage"], "reason": kernel["reason"]}
        for kernel in bundle.kernels
        if STAGES.index(wanted) > _depth(kernel["stage"])
    ]
    return _common(bundle, was_there) | {
        "stage": wanted,
        "reached": {stage: sum(depth >= i for depth in depths) for i, stage in enumerate(STAGES)},
        "short_of_stage": short,
        "is_complete": not short,
    }


def _depth(stage: str) -> int:
    """Place among the stages; -1 for none of them."""
    return STAGES.index(stage) if stage in STAGES else -1


def _common(bundle: Any, was_there: bool) -> dict[str, Any]:
    return {
        "folder": str(bundle.folder),
        "target": bundle.identity.target,
        "model": bundle.identity.model_name,
        "compilers": dict(bundle.identity.compilers),
        "was_there": was_there,
        "kernels": len({kernel["kernel"] for kernel in bundle.kernels}),
        "specialisations": len(bundle.kernels),
    }


def _summarize(reports: Sequence[Mapping[str, Any]], seconds: float) -> None:
    for report in reports:
        state = "was there already" if report["was_there"] else "compiled"
        words = _ascend_words(report) if "stage" in report else _nvidia_words(report)
        print(
            f"{report['target']}: {report['specialisations']} specialisations of "
            f"{report['kernels']} kernels {state}; {words}",
            file=sys.stderr,
        )
    print(f"{seconds:.1f} s", file=sys.stderr)


def _nvidia_words(report: Mapping[str, Any]) -> str:
    spilling = ", ".join(f"{name} ({size})" for name, size in report["spilling"].items())
    return (
        f"at most {report['most_registers']} registers, {report['most_stack_bytes']} bytes of "
        f"stack, {report['most_shared_bytes'] // 1024} KiB of shared memory"
        + (f"; more than {MOST_STACK} bytes of stack: {spilling}" if spilling else "")
    )


def _ascend_words(report: Mapping[str, Any]) -> str:
    counts = ", ".join(f"{count} reached {stage}" for stage, count in report["reached"].items())
    short = report["short_of_stage"]
    if not short:
        return counts
    reasons = dict.fromkeys(entry["reason"] for entry in short)
    if "CANN is not installed" in reasons:
        return (
            f"{counts}. What was lowered is kept, but machine code needs CANN's code generator "
            "(hivmc-a5 on PATH), which is not installed; --stage middle-end or --stage linalg asks "
            "for what can be had here"
        )
    return f"{counts}; {short[0]['kernel']}: {short[0]['reason']}"


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Progress]:
    """A bar on a terminal, a line every few seconds elsewhere."""
    if quiet or sys.stderr is None:
        yield lambda what, done, total: None
    elif sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        yield from _bar()
    else:
        yield _lines()


def _bar() -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (
        TimeElapsedColumn(),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        number = bar.add_task("", total=None)

        def show(what: str, done: int, total: int) -> None:
            bar.update(number, description=what, completed=done, total=total or None)

        yield show


def _lines() -> Progress:
    shown = float("-inf")

    def show(what: str, done: int, total: int) -> None:
        nonlocal shown
        now = time.monotonic()
        if now - shown >= _PLAIN_SECONDS or not total:
            shown = now
            count = f"{done}/{total} " if total else ""
            print(f"{count}{what}", file=sys.stderr, flush=True)

    return show
