"""Machine code without a GPU: the instructions and the registers that the sizes are chosen for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# Bytes of registers that do not fit, per thread: at most eight registers.
MAX_SPILLED = 32
ALL: list[str] = []


def _compile(arch: int, names: list[str]) -> dict[str, dict[str, Any]]:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    script = Path(__file__).with_name("compile_cases.py")
    command = [sys.executable, "-P", str(script), str(arch), *names]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    compiled: dict[str, dict[str, Any]] = json.loads(run.stdout)
    return compiled


@pytest.mark.parametrize(
    "arch, target, instruction, names",
    [
        (90, "sm_90a", "wgmma.mma_async", ALL),
        (103, "sm_103a", "tcgen05.mma", ["index_scores"]),
        pytest.param(100, "sm_100a", "tcgen05.mma", ALL, marks=pytest.mark.slow),
        pytest.param(103, "sm_103a", "tcgen05.mma", ALL, marks=pytest.mark.slow),
    ],
)
def test_kernels_compile(arch: int, target: str, instruction: str, names: list[str]) -> None:
    compiled = _compile(arch, names)
    for name, kernel in compiled.items():
        assert kernel["target"] == target
        assert kernel["cubin"] > 0
        assert kernel["stack_bytes"] <= MAX_SPILLED, name
        # 227 KiB for one block; a kernel replaced by a trap would hold nothing.
        assert kernel["shared_bytes"] <= 227 * 1024, name
        assert kernel["registers"] > 8, name
    for name in {"attention", "index_scores", "mix"} & compiled.keys():
        assert compiled[name][instruction] > 0, name
        assert compiled[name]["mma.sync"] == 0, name
    if arch != 90:
        assert compiled["index_scores"]["kind::mxf4.block_scale"] > 0, "FP4 as it is"
