"""What loading a model needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "goldens" / "tiny-a" / "checkpoint"


def test_a_cpu_needs_no_triton() -> None:
    """Triton is for Linux only, and importing it takes longer than all of the rest."""
    program = (
        "import sys; sys.modules['triton'] = None\n"
        "import deepinfer_cli.main, deepinfer.bench.embedded\n"
        "from deepinfer import OfflineEngine, SamplingParams\n"
        "with OfflineEngine(device='cpu') as engine:\n"
        "    [row] = engine.generate(['Hello'], SamplingParams(max_tokens=3))\n"
        "print(row.usage.completion_tokens)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "3\n", done.stderr
