"""A bundle is whole or absent, is found by what it was made from, and spares every compilation."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deepinfer.errors import ConfigError, EngineError
from deepinfer.kernels.bundle import Bundle, Identity, Json, find_bundle, read_bundle
from deepinfer.kernels.bundle_builder import build_bundle
from deepinfer.kernels.compile_pool import compile_all

_IDENTITY = Identity(
    target="sm90a", model="aa", model_name="tiny", sources="bb", compilers={"triton": "3.9.0"}
)


def _compiled(
    tmp_path: Path, content: bytes = b"code"
) -> Callable[[], tuple[list[Json], list[Json]]]:
    """What a compiler of one kernel gives."""

    def compile() -> tuple[list[Json], list[Json]]:
        made = {}
        for suffix in (".cubin", ".json"):
            path = tmp_path / f"made{suffix}"
            path.write_bytes(content)
            made[suffix] = str(path)
        return [{"kernel": "k"}], [{"files": made, "key": "KEY", "registers": 8}]

    return compile


def _build(tmp_path: Path, identity: Identity = _IDENTITY) -> Bundle:
    return build_bundle(tmp_path / "store", identity, _compiled(tmp_path))


def test_a_bundle_is_made_once(tmp_path: Path) -> None:
    first = _build(tmp_path)
    assert [kernel["registers"] for kernel in first.kernels] == [8]

    def never() -> tuple[list[Json], list[Json]]:
        raise AssertionError("compiled again")

    assert build_bundle(tmp_path / "store", _IDENTITY, never).folder == first.folder
    assert find_bundle(tmp_path / "store", _IDENTITY).kernels == first.kernels


def test_a_bundle_that_is_there_needs_no_right_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a folder that an administrator has filled for all."""
    first = _build(tmp_path)

    def refuse(*_: object, **__: object) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("deepinfer.kernels.bundle_builder._lock", refuse)
    assert _build(tmp_path).kernels == first.kernels
    with pytest.raises(EngineError, match="permission denied; no bundle was written"):
        _build(tmp_path, dataclasses.replace(_IDENTITY, sources="cc"))


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"target": "sm100a"}, "it is for sm90a, this is sm100a"),
        ({"model": "cc", "model_name": "full"}, "it is for the config tiny, this is full"),
        ({"compilers": {"triton": "3.6.0"}}, "triton 3.9.0, this machine has 3.6.0"),
        ({"sources": "cc"}, "the program has changed since"),
    ],
)
def test_a_bundle_of_something_else_is_refused(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    _build(tmp_path)
    wanted = dataclasses.replace(_IDENTITY, **change)
    with pytest.raises(ConfigError, match=reason) as caught:
        find_bundle(tmp_path / "store", wanted)
    assert f"deepinfer build --arch {wanted.target}" in str(caught.value)


def test_a_folder_without_bundles_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        find_bundle(tmp_path / "none", _IDENTITY)
    with pytest.raises(ConfigError, match="holds no bundle"):
        find_bundle(tmp_path, _IDENTITY)


def test_damage_is_noticed(tmp_path: Path) -> None:
    bundle = _build(tmp_path)
    code = next(bundle.folder.glob("*.cubin"))
    code.write_bytes(b"cod")
    with pytest.raises(ConfigError, match="is not the file that was built"):
        read_bundle(bundle.folder)
    code.unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        read_bundle(bundle.folder)
    (bundle.folder / "manifest.json").write_text('{"format": 99}')
    with pytest.raises(ConfigError, match="format 99"):
        read_bundle(bundle.folder)


@pytest.mark.parametrize("at", ["copy", "publish"])
def test_a_full_disk_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    def full(*_: object, **__: object) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    if at == "copy":
        monkeypatch.setattr("deepinfer.kernels.bundle_builder.write_manifest", full)
    else:
        monkeypatch.setattr("deepinfer.kernels.bundle_builder.os.fsync", full)
    with pytest.raises(EngineError, match="store: the disk is full; .* with -o"):
        _build(tmp_path)
    assert [path.name for path in (tmp_path / "store").iterdir()] == [f".{_IDENTITY.name}.lock"]


def test_a_kernel_that_does_not_compile_is_named(tmp_path: Path) -> None:
    results = [{"error": "CompilationError: no"}, {"error": "other"}]
    with pytest.raises(EngineError, match=r"first: CompilationError: no \(and 1 more\)"):
        build_bundle(
            tmp_path, _IDENTITY, lambda: ([{"kernel": "first"}, {"kernel": "second"}], results)
        )
    assert not list(tmp_path.glob("sm90a*"))


def test_two_builders_share_one_result(tmp_path: Path) -> None:
    compile, count, waits = _compiled(tmp_path), 0, 0
    inside, release = threading.Event(), threading.Event()

    def slow() -> tuple[list[Json], list[Json]]:
        nonlocal count
        count += 1
        inside.set()
        release.wait(120)
        return compile()

    def waiting() -> None:
        nonlocal waits
        waits += 1
        release.set()

    found: list[Bundle] = []

    def build() -> None:
        found.append(build_bundle(tmp_path / "store", _IDENTITY, slow, on_wait=waiting))

    first = threading.Thread(target=build)
    first.start()
    assert inside.wait(120)
    build()
    first.join()
    assert (count, waits) == (1, 1)
    assert found[0].folder == found[1].folder


_WORKER = """
import os, sys, time
from deepinfer.kernels.compile_serve import serve

def work(task):
    if task["kernel"] == "dies":
        print("an assertion failed", file=sys.stderr, flush=True)
        os.abort()
    if task["kernel"] == "waits":
        print(os.getpid(), file=open(task["pid_file"], "w"))
        time.sleep(1.5)
    if task["kernel"] == "full":
        raise OSError(28, "No space left on device")
    return {"kernel": task["kernel"]}

serve(work)
"""


@pytest.fixture
def worker(tmp_path: Path) -> dict[str, Any]:
    """Arguments of ``compile_all`` for a compiler that behaves as its task says."""
    (tmp_path / "strange_worker.py").write_text(_WORKER)
    return {"worker": "strange_worker", "environment": {"PYTHONPATH": str(tmp_path)}}


def test_a_compiler_that_dies_spoils_one_kernel(worker: dict[str, Any]) -> None:
    tasks = [{"kernel": name} for name in ("a", "dies", "b")]
    a, dead, b = compile_all(tasks, jobs=1, **worker)
    assert (a, b) == ({"kernel": "a"}, {"kernel": "b"})
    assert "exited with -6" in dead["error"] and "an assertion failed" in dead["error"]


_BUILDER = """
import json, sys
from pathlib import Path
from deepinfer.kernels.bundle import Identity
from deepinfer.kernels.bundle_builder import build_bundle
from deepinfer.kernels.compile_pool import compile_all

store, options = Path(sys.argv[1]), json.loads(sys.argv[2])
tasks = [{"kernel": "waits", "pid_file": sys.argv[3]}]
identity = Identity(**json.loads(sys.argv[4]))
build_bundle(store, identity, lambda: (tasks, compile_all(tasks, jobs=1, **options)))
"""


def test_a_killed_build_leaves_no_bundle_and_no_process(
    tmp_path: Path, worker: dict[str, Any]
) -> None:
    pid_file = tmp_path / "pid"
    store = tmp_path / "store"
    arguments = [str(store), json.dumps(worker), str(pid_file)]
    builder = subprocess.Popen(
        [
            sys.executable,
            "-P",
            "-c",
            _BUILDER,
            *arguments,
            json.dumps(dataclasses.asdict(_IDENTITY)),
        ],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    compiler = int(_wait_for(lambda: pid_file.read_text() if pid_file.exists() else ""))
    builder.kill()
    builder.wait()
    assert not [path for path in store.iterdir() if path.is_dir() and path.name[0] != "."]
    # It notices when it has done its task.
    _wait_for(lambda: "gone" if _is_gone(compiler) else "")
    (store / f".{_IDENTITY.name}.partial-1").mkdir()
    assert _build(tmp_path).kernels
    assert not list(store.glob(".*partial*"))


def _is_gone(pid: int) -> bool:
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True


def _wait_for(probe: Callable[[], str]) -> str:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if text := probe().strip():
            return text
        time.sleep(0.05)
    raise AssertionError("waited in vain")
