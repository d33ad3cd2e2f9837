"""Benchmarks that need no GPU still run: a short form of each, and their speeds are numbers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]
_SHORT = {
    "engine_overhead.py": ["--batch", "4", "--steps", "3", "--engine-only"],
    "pipeline_overhead.py": ["--rows", "40", "--few", "20"],
    "cpu_batching.py": ["--batches", "1", "2", "--num-tokens", "4", "--rounds", "1"],
}


@pytest.mark.parametrize("name", _SHORT)
def test_a_short_run_prints_speeds(name: str) -> None:
    command = [sys.executable, "-P", str(_ROOT / "benchmarks" / name), *_SHORT[name]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines, done.stderr
    speeds = [v for line in lines for k, v in line.items() if "per_" in k or k == "ratio"]
    assert speeds and all(speed > 0 for speed in speeds)
