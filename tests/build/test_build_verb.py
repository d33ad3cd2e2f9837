"""What ``deepinfer build`` refuses, and what it says of kernels that use the stack."""

from __future__ import annotations

import dataclasses
import errno
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from deepinfer.errors import CheckpointError, ConfigError, EngineError
from deepinfer.kernels import bundle
from deepinfer.kernels.bundle_builder import build_bundle
from deepinfer_cli.build.build import BuildRequest, build
from deepinfer_cli.build.bundle_report import MOST_STACK


def _build(environment: Mapping[str, str] | None = None, **changed: Any) -> int:
    request = BuildRequest(
        accelerator=None, arch=None, config="tiny", output=Path("/nowhere"), stage="binary",
        jobs=None, json=True, quiet=False,
    )  # fmt: skip
    return build(dataclasses.replace(request, **changed), environment or {})


@pytest.mark.parametrize(
    "changed, words",
    [
        ({"arch": "sm90"}, "--arch 'sm90' is not known; did you mean sm90a"),
        ({"arch": "sm_100"}, "did you mean sm100a"),
        ({"arch": "sm90a,H100"}, "--arch 'H100' is not known; did you mean sm90a?"),
        ({"arch": "xyz"}, "--arch 'xyz' is not known. Known: sm90a, sm100a"),
        ({"arch": " , "}, "--arch is empty"),
        ({"arch": "ascend950", "accelerator": "nvidia"}, "is not of --accelerator nvidia"),
        ({"arch": "sm90a", "accelerator": "ascend"}, "expected ascend950"),
        ({"accelerator": "amd"}, "--accelerator 'amd': expected auto, nvidia, ascend"),
        ({"stage": "ptx"}, "--stage 'ptx': expected linalg or middle-end or binary"),
        (
            {"stage": "linalg", "arch": "sm90a"},
            "--stage linalg applies only to --accelerator ascend",
        ),
        ({"jobs": 0}, "--jobs 0: expected at least 1"),
    ],
)
def test_bad_input_is_named(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _build(**changed)
    assert words in str(caught.value)


@pytest.mark.parametrize("asked, used", [(1, 1), (2, 2), (3, 2), (10**6, 2), (None, None)])
def test_there_are_no_more_compilers_than_cores(
    asked: int | None, used: int | None, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    found = []

    def build_kernels(*_: object, jobs: int | None, **__: object) -> object:
        found.append(jobs)
        raise EngineError("far enough")

    monkeypatch.setattr("deepinfer.kernel_build.num_cores", lambda: 2)
    monkeypatch.setattr("deepinfer.kernel_build.build_kernels", build_kernels)
    with pytest.raises(EngineError, match="far enough"):
        _build(arch="sm90a", jobs=asked)
    assert found == [used]
    said = f"--jobs {asked}: compiling 2 at a time, one on each core\n"
    assert capfd.readouterr().err == (said if asked not in (1, used) else "")


def test_a_bad_variable_is_named() -> None:
    with pytest.raises(ConfigError, match="DEEPINFER_ACCELERATOR='amd'"):
        _build({"DEEPINFER_ACCELERATOR": "amd"})


def test_a_config_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"--config '{tmp_path}/none': expected full, tiny"):
        _build(arch="sm90a", config=str(tmp_path / "none"))
    with pytest.raises(CheckpointError, match="did you mean tiny"):
        _build(arch="sm90a", config="tinny")
    with pytest.raises(CheckpointError, match=r"config\.json does not exist"):
        _build(arch="sm90a", config=str(tmp_path))


def test_a_full_disk_is_named_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compilers keep what they make in the cache, which may lie on another disk than the output."""
    full = [{"error": "No space left on device", "errno": errno.ENOSPC}]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("deepinfer.kernel_build._tasks", lambda *_: [{"kernel": "k"}])
    monkeypatch.setattr("deepinfer.kernels.compile_pool.compile_all", lambda *_, **__: full)
    with pytest.raises(EngineError, match="cache/deepinfer/objects or .*: the disk is full; "):
        _build(arch="sm90a", output=tmp_path / "store")
    assert not list((tmp_path / "store").glob("sm90a*"))


def test_a_triton_that_is_too_old_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "version", lambda package: "3.2.0+gite8c6a1")
    with pytest.raises(ConfigError, match=r"Triton 3\.2\.0\+gite8c6a1 is too old"):
        _build(arch="sm90a")


def test_kernels_that_spill_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    code = tmp_path / "code"
    code.write_bytes(b"code")
    stacks = {"small": [MOST_STACK], "large": [80, 48, 0]}
    tasks = [{"kernel": name} for name, sizes in stacks.items() for _ in sizes]
    results = [
        {"key": f"{i}", "files": {".cubin": str(code)}, "registers": 255, "stack_bytes": size,
         "shared_bytes": 2048}
        for i, size in enumerate(size for sizes in stacks.values() for size in sizes)
    ]  # fmt: skip
    identity = bundle.nvidia_identity({}, "tiny", "sm90a")
    built = build_bundle(tmp_path / "store", identity, lambda: (tasks, results))
    monkeypatch.setattr(
        "deepinfer.kernel_build.build_kernels",
        lambda *_, **__: dataclasses.make_dataclass("Built", ["bundle", "was_there"])(built, False),
    )
    assert _build(arch="sm90a", accelerator="nvidia") == 0
    out, err = capfd.readouterr()
    (report,) = json.loads(out)
    assert report["spilling"] == {"large": 80}
    assert "more than 32 bytes of stack: large (80)" in err
