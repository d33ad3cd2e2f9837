"""Benchmarks that need no GPU still run: a short form of each, and their speeds are numbers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

_ROOT = Path(__file__).parents[1]
_SHORT = {
    "engine_overhead.py": ["--batch", "4", "--steps", "3", "--engine-only"],
    "pipeline_overhead.py": ["--rows", "40", "--few", "20"],
    "cpu_batching.py": ["--batches", "1", "2", "--num-tokens", "4", "--rounds", "1"],
}


@pytest.mark.parametrize(
    "name",
    [
        "pipeline_overhead.py",
        pytest.param("engine_overhead.py", marks=pytest.mark.slow),
        pytest.param("cpu_batching.py", marks=pytest.mark.slow),
    ],
)
def test_a_short_run_prints_speeds(name: str) -> None:
    command = [sys.executable, "-P", str(_ROOT / "benchmarks" / name), *_SHORT[name]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines, done.stderr
    speeds = [v for line in lines for k, v in line.items() if "per_" in k or k == "ratio"]
    assert speeds and all(speed > 0 for speed in speeds)


@pytest.mark.slow
def test_steps_with_masks_run_without_a_gpu() -> None:
    """What they take on a CPU says nothing; the engine's parts that it stands in for are these."""
    options = ["--device", "cpu", "--requests", "3", "--steps", "2", "--step-ms", "1"]
    command = [sys.executable, "-m", "benchmarks.constraint_gpu", *options]
    done = subprocess.run(
        [*command, "--constraints", "json schema"], capture_output=True, text=True, cwd=_ROOT
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [line["drafts"] for line in lines] == [5, 0], done.stderr
    assert all(line["free_ms"] > 0 and line["held_ms"] > 0 for line in lines)


def test_a_missing_sanitizer_is_named() -> None:
    command = [sys.executable, "-P", str(_ROOT / "benchmarks" / "memcheck.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "compute-sanitizer is not here" in done.stderr:
        assert done.returncode == 1
    elif not torch.cuda.is_available():
        assert done.returncode
