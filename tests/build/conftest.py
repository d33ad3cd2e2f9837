"""Kernels are compiled in processes of their own: those of the test process may be interpreted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).parents[2]


def clean_environment(**more: str) -> dict[str, str]:
    """This process's, without what changes how Triton works."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    kept.pop("DEEPINFER_ACCELERATOR", None)
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH", "")]))
    return kept | {"PYTHONPATH": path} | more


@pytest.fixture
def in_own_process(tmp_path: Path) -> Callable[..., Any]:
    """Run Python code with caches of its own, and return what it printed, as JSON."""

    def run(code: str, *arguments: str) -> Any:
        environment = clean_environment(
            XDG_CACHE_HOME=str(tmp_path / "cache"), TRITON_CACHE_DIR=str(tmp_path / "triton")
        )
        done = subprocess.run(
            [sys.executable, "-P", "-c", code, *arguments],
            env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run
