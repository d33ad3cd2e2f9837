"""What the documents tell people to type works: every command, script and row."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def _fault(commands: Any, shell: Callable[..., str], *, fake: bool) -> str:
    """What went wrong in a block or what it starts from; "" if nothing."""
    if reasons := [*commands.marked("not run"), *commands.marked("run by")]:
        pytest.skip(reasons[0])
    for program in ("jq", "less"):
        if f"| {program}" in commands.text and shutil.which(program) is None:
            pytest.skip(f"{program} is not installed here")
    if fake and commands.marked("slow"):
        pytest.skip(f"only with the real engine: {commands.marked('slow')[0]}")
    for text in (*commands.marked("setup"), commands.text):
        if fault := shell(text, fake=fake):
            return fault
    return ""


def test_commands_with_an_engine_that_echoes(commands: Any, shell: Callable[..., str]) -> None:
    assert _fault(commands, shell, fake=True) == ""


@pytest.mark.slow
def test_commands_with_the_real_engine(commands: Any, shell: Callable[..., str]) -> None:
    assert _fault(commands, shell, fake=False) == ""


@pytest.mark.slow
def test_python(script: Any, environment: dict[str, str], tmp_path: Path) -> None:
    if reasons := script.marked("not run"):
        pytest.skip(reasons[0])
    done = subprocess.run(
        [sys.executable, "-P", "-c", script.text],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_json_is_json(json_block: Any) -> None:
    lines = json_block.text.splitlines()
    assert lines and all(isinstance(json.loads(line), dict) for line in lines)


def test_ci_runs_the_commands_that_say_so(root: Path, commands: Any) -> None:
    if not commands.marked("run by"):
        pytest.skip("the test above runs it")
    steps = (root / ".ci" / "run").read_text().splitlines()
    for line in commands.text.splitlines():
        assert line.split("#")[0].strip() in steps


def test_what_is_not_run_says_what_it_needs(commands: Any) -> None:
    for reason in commands.marked("not run"):
        assert reason.startswith("needs "), reason
