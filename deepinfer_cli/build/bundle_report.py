"""Describes a bundle, as JSON and as a line of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from deepinfer.kernels.bundle import Bundle, Json
from deepinfer.kernels.targets import NO_CODE_GENERATOR, NVIDIA_TARGETS
from deepinfer_cli.stdio import say

if TYPE_CHECKING:
    from deepinfer.kernel_build import Built

STAGES = ("linalg", "middle-end", "binary")
# Stack bytes per thread that do not slow a kernel down noticeably: eight registers.
MOST_STACK = 32


def bundle_report(built: Built) -> dict[str, Any]:
    """The ``--json`` output for one bundle."""
    bundle = built.bundle
    common = {
        "folder": str(bundle.folder),
        "target": bundle.identity.target,
        "model": bundle.identity.model_name,
        "compilers": dict(bundle.identity.compilers),
        "was_there": built.was_there,
        "kernels": len({kernel["kernel"] for kernel in bundle.kernels}),
        "specialisations": len(bundle.kernels),
    }
    is_nvidia = bundle.identity.target in NVIDIA_TARGETS
    return common | (_nvidia_facts(bundle.kernels) if is_nvidia else _ascend_facts(bundle))


def _nvidia_facts(kernels: Sequence[Json]) -> dict[str, Any]:
    return {
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


def _ascend_facts(bundle: Bundle) -> dict[str, Any]:
    depths = [_depth(kernel["stage"]) for kernel in bundle.kernels]
    wanted = bundle.identity.stage
    short = [
        {"kernel": kernel["kernel"], "stage": kernel["stage"], "reason": kernel["reason"]}
        for kernel in bundle.kernels
        if STAGES.index(wanted) > _depth(kernel["stage"])
    ]
    return {
        "stage": wanted,
        "reached": {stage: sum(depth >= i for depth in depths) for i, stage in enumerate(STAGES)},
        "short_of_stage": short,
        "is_complete": not short,
    }


def _depth(stage: str) -> int:
    """Index of a stage; -1 if it is none."""
    return STAGES.index(stage) if stage in STAGES else -1


def summarize(reports: Sequence[Mapping[str, Any]], seconds: float) -> None:
    """Print a line per bundle, and the total time, on stderr."""
    for report in reports:
        state = "were there already" if report["was_there"] else "compiled"
        words = _ascend_words(report) if "stage" in report else _nvidia_words(report)
        say(
            f"{report['target']}: {report['specialisations']} specialisations of "
            f"{report['kernels']} kernels {state}; {words}"
        )
    say(f"{seconds:.1f} s")


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
    stopped = [entry for entry in short if entry["reason"] != NO_CODE_GENERATOR]
    words = counts
    if stopped:
        first = stopped[0]
        words += f"; {len(stopped)} stopped before, first {first['kernel']}: {first['reason']}"
    if len(stopped) < len(short):
        words += (
            ". What was lowered is kept, but machine code needs CANN's code generator (hivmc-a5 on "
            "PATH), which is not installed; --stage middle-end or --stage linalg asks for what can "
            "be had here"
        )
    return words
