"""build.sh --release on machines that have, or lack, what it needs; their tools are stand-ins."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
Machine = Callable[..., subprocess.CompletedProcess[str]]
_PYTHON = """#!/bin/bash
echo "python $*" >> "$CALLS"
case "$*" in
  "-m venv .venv") mkdir -p .venv/bin; cp "$0" .venv/bin/python; cp "$0" .venv/bin/deepinfer ;;
esac
"""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Run build.sh in a folder of its own with these tools: name to what they print."""
    shutil.copy(_ROOT / "build.sh", tmp_path)
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "dirname", "sed", "head", "sort", "uname", "mkdir", "cp", "cat"):
        path = shutil.which(name)
        assert path is not None
        (tools / name).symlink_to(path)
    _tool(tools / "python3", _PYTHON)

    def run(
        option: str = "--release", *, prints: dict[str, str] | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        for name, text in (prints or {}).items():
            _tool(tools / name, f"#!/bin/bash\necho '{text}'\n")
        environment = {"PATH": str(tools), "CALLS": str(tmp_path / "calls"), **variables}
        return subprocess.run(
            ["bash", "build.sh", option], cwd=tmp_path, env=environment, text=True,
            capture_output=True, check=False,
        )  # fmt: skip

    return run


def _tool(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


_CUDA = "Cuda compilation tools, release {}, V13.0.1"


def _has_cuda() -> bool:
    return Path("/usr/local/cuda/bin/nvcc").exists()


@pytest.mark.parametrize(
    "gcc, nvcc, reason",
    [
        ("", "", "needs GCC 13 or newer, there is none"),
        ("12.2.0", "", "needs GCC 13 or newer, 'gcc' is 12.2.0"),
        ("13", "", "needs CUDA 13, 'nvcc' is not there"),
        ("14.1.0", "12.9", "needs CUDA 13, 'nvcc' is of 12.9"),
    ],
)
def test_nvidia_without_its_tools_is_refused(
    machine: Machine, gcc: str, nvcc: str, reason: str
) -> None:
    if _has_cuda() and gcc >= "13":
        pytest.skip("this machine's own CUDA is found first")
    prints = {"gcc": gcc} if gcc else {}
    done = machine(prints=prints | ({"nvcc": _CUDA.format(nvcc)} if nvcc else {}))
    assert done.returncode == 2
    assert reason in done.stderr
    assert "deepinfer build --accelerator nvidia --arch sm90a,sm100a,sm103a' still works" in (
        done.stderr
    )


def test_nvidia_with_its_tools_is_built(machine: Machine, tmp_path: Path) -> None:
    _tool(tmp_path / "cuda" / "bin" / "nvcc", f"#!/bin/bash\necho '{_CUDA.format('13.1')}'\n")
    done = machine(prints={"gcc": "13.3.0"}, CUDA_HOME=str(tmp_path / "cuda"),
                   DEEPINFER_BATCH_INVARIANT="1")  # fmt: skip
    assert done.returncode == 0, done.stderr
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls[-2:] == [
        "python -m pip install --quiet --editable .",
        "python build --accelerator nvidia",
    ]


def test_what_is_installed_is_not_installed_again(machine: Machine, tmp_path: Path) -> None:
    def num_installs() -> int:
        return (tmp_path / "calls").read_text().count("pip install")

    listed = tmp_path / "pyproject.toml"
    listed.touch()
    os.utime(listed, (1, 1))
    for _ in range(2):
        assert machine("").returncode == 0
        assert num_installs() == 1
    os.utime(listed, (2**32, 2**32))
    assert machine("").returncode == 0
    assert num_installs() == 2


def test_ascend_needs_cann(machine: Machine, tmp_path: Path) -> None:
    home = tmp_path / "cann"
    variables = {"DEEPINFER_ACCELERATOR": "ascend", "ASCEND_HOME_PATH": str(home)}
    done = machine(prints={"gcc": "13"}, **variables)
    assert done.returncode == 2 and "needs CANN 9.2, there is none" in done.stderr
    assert "deepinfer build --accelerator ascend --stage linalg' still works" in done.stderr
    home.mkdir()
    (home / "version.info").write_text("Version=8.5.0\n")
    done = machine(**variables)
    assert done.returncode == 2 and f"'{home}' is 8.5.0" in done.stderr
    (home / "version.info").write_text("Version=9.2.RC1\n")
    done = machine(**variables, DEEPINFER_BATCH_INVARIANT="1")
    assert done.returncode == 2 and "no batch-invariant mode on ascend" in done.stderr
    assert machine(**variables).returncode == 0
    assert (tmp_path / "calls").read_text().endswith("python build --accelerator ascend\n")


@pytest.mark.parametrize(
    "variables, reason",
    [
        ({"DEEPINFER_ACCELERATOR": "tpu"}, "expected nvidia, ascend or auto"),
        ({"DEEPINFER_BATCH_INVARIANT": "yes"}, "expected 0 or 1"),
    ],
)
def test_variables_that_say_nothing_are_refused(
    machine: Machine, variables: dict[str, str], reason: str
) -> None:
    done = machine(**variables)
    assert done.returncode == 2 and reason in done.stderr


def test_an_unknown_option_is_refused(machine: Machine) -> None:
    done = machine("--relase")
    assert done.returncode == 2 and "--release" in done.stderr
