"""Kernels are compiled in processes of their own: those of the test process may be interpreted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
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


@pytest.fixture(scope="session")
def forker() -> Iterator[subprocess.Popen[str]]:
    """Whose forks run code: see ``forker.py``."""
    command = [sys.executable, "-P", str(Path(__file__).with_name("forker.py"))]
    with subprocess.Popen(
        command, env=clean_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        yield process
        os.killpg(process.pid, signal.SIGKILL)  # with what ran out of time


@pytest.fixture
def in_own_process(forker: subprocess.Popen[str], tmp_path: Path) -> Callable[..., Any]:
    """Run Python code with caches of its own, and return what it printed, as JSON."""

    def run(code: str, *arguments: str) -> Any:
        output, errors = tmp_path / "output", tmp_path / "errors"
        environment = clean_environment(
            XDG_CACHE_HOME=str(tmp_path / "cache"), TRITON_CACHE_DIR=str(tmp_path / "triton")
        )
        request = {
            "code": code, "arguments": arguments, "environment": environment,
            "output": str(output), "errors": str(errors),
        }  # fmt: skip
        assert forker.stdin is not None and forker.stdout is not None
        print(json.dumps(request), file=forker.stdin, flush=True)
        exit_code = forker.stdout.readline()
        assert exit_code == "0\n", errors.read_text()
        return json.loads(output.read_text())

    return run
