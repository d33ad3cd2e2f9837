"""On a CPU the plain operations run, and nothing imports Triton."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import importlib, pkgutil, sys
import torch
import deepinfer.kernels as kernels
for module in pkgutil.iter_modules(kernels.__path__):
    if module.ispkg:
        family = importlib.import_module(f"deepinfer.kernels.{module.name}")
from deepinfer.kernels.norm import rms_norm
from deepinfer.kernels.rope import apply_rope
from deepinfer.kernels.rows import pack_latents
x, weight = torch.randn(3, 64).bfloat16(), torch.ones(64)
x, rope = rms_norm(x, weight, 1e-6), (torch.zeros(3, 32), torch.zeros(3, 32))
apply_rope(x, *rope), pack_latents(x, rope, "window")
print("triton" in sys.modules)
"""


def test_cpu_operations_do_not_import_triton() -> None:
    command = [sys.executable, "-P", "-c", SCRIPT]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "False"
