"""On a GPU: with a bundle the engine's kernels are loaded, not compiled."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

_SCRIPT = Path(__file__).parents[2] / "benchmarks" / "warm_start.py"


@pytest.mark.gpu
def test_a_warm_start_compiles_nothing() -> None:
    done = subprocess.run([sys.executable, "-P", str(_SCRIPT)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    starts = {line["start"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert len(starts["cold"]["compiled"]) > 20
    assert starts["warm"]["compiled"] == starts["again"]["compiled"] == []
