"""What Ascend's front end made of the kernels computes the right numbers, on this CPU.

Needs triton-ascend (``deepinfer build --accelerator ascend`` installs it) and MLIR's programs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from deepinfer.kernels.ascend.environment import environment_folder

_FOLDER = Path(__file__).parent
_SCRIPT = _FOLDER / "linalg_cases.py"
# Largest difference, as a share of the largest value.  Whatever is not listed is equal bit by bit,
# or to the rounding of fp32 sums in another order.
_ROUNDED = 1e-6
_FAMILIES = {
    "attention", "norm and quantise", "projection", "quantised linear", "grouped linear", "experts",
    "swiglu", "router", "mhc", "index scores", "top-k", "engram", "sampling",
}  # fmt: skip
_LIMITS = {"attention": 5e-3}  # P is rounded to bf16 relative to the maximum so far


def _missing() -> str:
    sys.path.insert(0, str(_FOLDER))
    from linalg_cpu import missing_programs

    if not (environment_folder() / "complete").exists():
        return "triton-ascend is not there: deepinfer build --accelerator ascend"
    if missing := missing_programs():
        return f"not installed: {', '.join(missing)} (Debian: mlir-19-tools, llvm-19, gcc)"
    return ""


_REASON = _missing()
pytestmark = pytest.mark.skipif(bool(_REASON), reason=_REASON)


def _run(folder: Path, *names: str) -> dict[str, Any]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TRITON_")}
    path = [str(_FOLDER.parents[1]), str(_FOLDER), os.environ.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    command = [sys.executable, "-P", str(_SCRIPT), str(folder), str(environment_folder()), *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _check(found: dict[str, Any]) -> None:
    for name, results in found["cases"].items():
        for result in results:
            assert result["error"] <= _LIMITS.get(name, _ROUNDED), (name, result)


def test_one_kernel_computes_the_right_numbers(tmp_path: Path) -> None:
    found = _run(tmp_path, "router")
    assert set(found["cases"]) == {"router"}
    _check(found)


@pytest.mark.slow
def test_every_family_computes_the_right_numbers(tmp_path: Path) -> None:
    found = _run(tmp_path)
    assert found["cases"].keys() >= _FAMILIES
    assert len(found["kernels"]) >= 18
    _check(found)
