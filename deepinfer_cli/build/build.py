"""``deepinfer build``: compiles the kernels ahead of time, and says what came out."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deepinfer.errors import ConfigError
from deepinfer.kernels.targets import ASCEND_TARGETS, NVIDIA_TARGETS, check_targets, nvidia_target
from deepinfer_cli.stdio import say

from .bundle_report import STAGES, bundle_report, summarize
from .progress import show_progress

ACCELERATORS = ("auto", "nvidia", "ascend")


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
    from deepinfer.kernel_build import build_kernels, num_cores
    from deepinfer.kernels.bundle import default_store

    accelerator = _accelerator(request, environment)
    targets = _targets(request.arch, accelerator)
    if request.stage not in STAGES:
        raise ConfigError(f"--stage {request.stage!r}: expected {' or '.join(STAGES)}")
    if request.stage != STAGES[-1] and accelerator != "ascend":
        raise ConfigError(f"--stage {request.stage} applies only to --accelerator ascend")
    if request.jobs is not None and request.jobs < 1:
        raise ConfigError(f"--jobs {request.jobs}: expected at least 1")
    jobs = request.jobs
    if jobs is not None and jobs > num_cores():
        jobs = num_cores()
        if not request.quiet:
            say(f"--jobs {request.jobs}: compiling {jobs} at a time, one on each core")
    store = request.output or default_store()
    started = time.perf_counter()
    reports = []
    with show_progress(quiet=request.quiet) as progress:
        for target in targets:
            built = build_kernels(
                request.config,
                target,
                store,
                stage=request.stage,
                jobs=jobs,
                progress=progress,
            )
            reports.append(bundle_report(built))
    if request.json:
        print(json.dumps(reports, indent=1))
    else:
        for report in reports:
            print(report["folder"])
    if not request.quiet:
        summarize(reports, time.perf_counter() - started)
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
    """The requested targets, else those of this machine's GPUs, else all."""
    if asked is None:
        if accelerator == "ascend":
            return list(ASCEND_TARGETS)
        return _machine_targets() or list(NVIDIA_TARGETS)
    names = list(dict.fromkeys(name.strip() for name in asked.split(",") if name.strip()))
    if not names:
        raise ConfigError("--arch is empty: give one or more of " + ", ".join(NVIDIA_TARGETS))
    check_targets(names, accelerator)
    return names


def _machine_targets() -> list[str]:
    """The targets of this machine's GPUs, from nvidia-smi: importing torch takes seconds."""
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
