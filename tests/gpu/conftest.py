"""Tests that need an NVIDIA GPU and nothing but torch, triton, numpy and safetensors.

    python -m pytest -m gpu tests/gpu

On a machine without this project's pytest plugins: ``PYTHONPATH=$PWD python -m pytest -c /dev/null
--rootdir=. --import-mode=importlib tests/gpu``.

They go from token ids through the engine; prompts come from ``data/token_ids.npz``.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
