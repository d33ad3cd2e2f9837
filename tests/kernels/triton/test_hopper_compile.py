"""Machine code of the Hopper forms without a GPU: matrix instructions, registers, shared memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# Bytes of registers that do not fit, per thread: at most eight registers.
MAX_SPILLED = 32
# Where results leave quantised, Triton 3.9 makes it ten; 3.6 makes it none.
MAX_SPILLED_OF = {"attention_gluon_kernel": 40}
MATRIX_KERNELS = {
    "attention_gluon_kernel": 7,
    "score_gluon_kernel": 2,
    "score_listed_kernel": 1,
    "advance_kernel": 4,
}
FEW = {"attention_gluon_kernel": 1, "score_gluon_kernel": 2, "advance_kernel": 1}


@pytest.mark.parametrize(
    "which, counts", [((), FEW), pytest.param(("all",), MATRIX_KERNELS, marks=pytest.mark.slow)]
)
def test_hopper_kernels_compile(which: tuple[str, ...], counts: dict[str, int]) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-P", str(Path(__file__).with_name("hopper_cases.py")), *which]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    kernels = [json.loads(line) for line in run.stdout.splitlines()]
    for name, count in counts.items():
        own = [kernel for kernel in kernels if kernel["kernel"] == name]
        assert len(own) == count
        for kernel in own:
            assert kernel["instructions"]["wgmma.mma_async"] > 0, name
            assert "mma.sync" not in kernel["instructions"], name
    assert any(kernel["kernel"] == "finish_gluon_kernel" for kernel in kernels)
    combined = [kernel for kernel in kernels if kernel["kernel"] == "combine_pieces_kernel"]
    assert len(combined) == (2 if which else 0), "values as they are, and quantised"
    for kernel in kernels:
        most = MAX_SPILLED_OF.get(kernel["kernel"], MAX_SPILLED)
        assert kernel["stack_bytes"] <= most, kernel
        assert kernel["shared_bytes"] <= 227 * 1024, kernel["kernel"]
