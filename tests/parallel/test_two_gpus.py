"""Two GPUs of one host: the exchange gives one rank's bits, and layouts one rank's answers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

_SCRIPT = Path(__file__).parents[2] / "benchmarks" / "two_gpus.py"


@pytest.mark.gpu
@pytest.mark.multi_gpu
@pytest.mark.parametrize("part", ["exchange", "peer-check", "answers", "peer-answers"])
def test_no_check_fails(part: str) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    command = [sys.executable, str(_SCRIPT), part, "--part-s", "240"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0, [line for line in lines if line.get("ok") is False] or done.stderr
    assert any("check" in line for line in lines)
