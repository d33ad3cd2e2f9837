"""Kernels for Ascend: the tools' folder, and how far kernels get without CANN."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deepinfer.errors import EngineError
from deepinfer.kernels.ascend import environment
from deepinfer.kernels.ascend.environment import (
    ascend_environment,
    environment_folder,
    install_command,
    worker_environment,
)
from deepinfer.kernels.bundle import ascend_identity
from deepinfer.kernels.bundle_builder import build_bundle
from deepinfer.kernels.compile_pool import compile_all
from deepinfer_cli.build import build as build_verb

_HAS_TOOLS = (environment_folder() / "complete").exists()
needs_tools = pytest.mark.skipif(
    not _HAS_TOOLS, reason="triton-ascend is not there: deepinfer build --accelerator ascend"
)


def _answer(code: int, stderr: str) -> Callable[..., Any]:
    def run(command: list[str], **_: Any) -> Any:
        if not code:
            folder = Path(command[command.index("--target") + 1])
            (folder / "triton").mkdir(parents=True)
        return subprocess.CompletedProcess(command, code, "", stderr)

    return run


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(environment, "_PYTHON", sys.version_info[:2])
    return tmp_path


def test_the_tools_are_installed_once(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(environment.subprocess, "run", _answer(0, ""))
    folder = ascend_environment(lambda: said.append("installing"))
    assert (folder / "triton").is_dir()
    assert ascend_environment(lambda: said.append("installing")) == folder
    assert said == ["installing"]
    assert worker_environment(folder)["PYTHONPATH"].startswith(str(folder))


def test_offline_the_error_gives_the_command(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "WARNING: Retrying\nERROR: No matching distribution found for triton-ascend==3.2.0\n"
    monkeypatch.setattr(environment.subprocess, "run", _answer(1, said))
    with pytest.raises(EngineError, match="No matching distribution") as caught:
        ascend_environment()
    assert " ".join(install_command(environment_folder())) in str(caught.value)
    assert not list((own_cache / "deepinfer").iterdir())


def test_another_python_is_refused(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_PYTHON", (3, 5))
    with pytest.raises(EngineError, match=r"is for Python 3\.11, this is 3\."):
        ascend_environment()


@pytest.mark.parametrize(
    "stage, reached, code",
    [
        ("linalg", ("linalg", "linalg"), 0),
        ("middle-end", ("middle-end", "linalg"), 1),
        ("binary", ("middle-end", "middle-end"), 1),
        ("binary", ("linalg", "middle-end"), 1),
        ("binary", ("binary", "binary"), 0),
    ],
)
def test_the_exit_code_says_whether_the_stage_was_reached(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    stage: str,
    reached: tuple[str, ...],
    code: int,
) -> None:
    lowered = tmp_path / "kernel.mlir"
    lowered.write_text("module {}")
    tasks = [{"kernel": f"k{i}", "objects": "/x"} for i in range(len(reached))]
    reasons = {"middle-end": "CANN is not installed", "linalg": "ub overflow", "binary": ""}
    results = [
        {"key": str(i), "stage": r, "reason": reasons[r], "files": {".linalg.mlir": str(lowered)}}
        for i, r in enumerate(reached)
    ]
    identity = ascend_identity({}, "tiny", stage, {"triton-ascend": "3.2.0"})
    built = build_bundle(tmp_path / "store", identity, lambda: (tasks, results))
    monkeypatch.setattr(
        "deepinfer.kernel_build.build_kernels",
        lambda *_, **__: dataclasses.make_dataclass("Built", ["bundle", "was_there"])(built, False),
    )
    request = build_verb.BuildRequest(
        accelerator="ascend", arch=None, config="tiny", output=tmp_path / "store", stage=stage,
        jobs=None, json=True, quiet=False,
    )  # fmt: skip
    assert build_verb.build(request, {}) == code
    out, err = capfd.readouterr()
    (report,) = json.loads(out)
    assert report["reached"]["linalg"] == 2
    assert len(list(built.folder.glob("*.linalg.mlir"))) == 2
    assert ("CANN" in err) == (code == 1 and reached[1] == "middle-end")
    assert ("1 stopped before, first k" in err and "ub overflow" in err) == (
        stage != "linalg" and "linalg" in reached
    )


_TASKS = """
import json
import torch
from deepinfer.kernels.compile_task import task_of
from deepinfer.kernels.moe import swiglu
from deepinfer.kernels.rehearsal import PretendedDevice, rehearse
with rehearse(PretendedDevice(None)) as launches:
    swiglu(torch.zeros(3, 256, dtype=torch.bfloat16), 10.0)
print(json.dumps([task_of(launch) for launch in launches.values()]))
"""


@needs_tools
def test_a_kernel_is_taken_through_the_middle_end(
    in_own_process: Callable[..., Any], tmp_path: Path
) -> None:
    (task,) = in_own_process(_TASKS)
    task |= {"stage": "binary", "objects": str(tmp_path / "objects")}
    broken = task | {"constants": [[path, "nonsense"] for path, _ in task["constants"]]}
    found, refused = compile_all(
        [task, broken],
        jobs=1,
        worker="deepinfer.kernels.ascend.worker",
        environment=worker_environment(environment_folder()),
    )
    assert found["stage"] in ("middle-end", "binary"), found
    text = Path(found["files"][".linalg.mlir"]).read_text()
    assert "linalg.generic" in text or "arith." in text
    assert "hivm" in Path(found["files"][".hivm.mlir"]).read_text()
    assert refused["stage"] == "none" and refused["reason"]
