"""The benchmarks of several GPUs run in small on a CPU: every part, and no check fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

_FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("name", "ranks"), [("two_gpus.py", 2), ("eight_gpus.py", 8)])
def test_a_dry_run_on_a_cpu(name: str, ranks: int) -> None:
    options = ["--device", "cpu", "--small", "--ranks", str(ranks), "--part-s", "900"]
    command = [sys.executable, "-P", str(_FOLDER / name), *options]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=_FOLDER.parent,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(_FOLDER), os.environ["PYTHONPATH"]])},
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0, [line for line in lines if line.get("ok") is False] or done.stderr
    checks = [line["check"] for line in lines if "check" in line]
    assert "experts on all" in checks and "prompts on half, answers on half" in checks
    assert all(line["ok"] for line in lines if "check" in line)
