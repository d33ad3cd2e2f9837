"""``deepinfer doctor``: what it finds, what it keeps to itself, and its verdict."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from deepinfer.engine.memory.device_memory import DeviceMemory
from deepinfer.engine.types import MemoryPlan
from deepinfer.kernel_build import model_config
from deepinfer.kernels.bundle import nvidia_identity
from deepinfer.kernels.bundle_builder import build_bundle
from deepinfer_cli.doctor import hardware, readiness
from deepinfer_cli.doctor.checks import Check, line_of, shown_path
from deepinfer_cli.doctor.hardware import compiler_checks, disk_checks
from deepinfer_cli.doctor.readiness import bundle_checks, memory_check, run_checks
from deepinfer_cli.doctor.software import shadow_checks
from deepinfer_cli.doctor.verb import print_checks


def _states(checks: Any) -> dict[str, str]:
    return {check.name: check.state for check in checks}


def test_a_working_machine_is_ready(cli: Callable[..., Any]) -> None:
    done = cli("doctor", "--json")
    found = json.loads(done.out)
    assert done.exit_code == 0 and found["ready"] and found["schema"] == "deepinfer.doctor/1"
    groups = [check["group"] for check in found["checks"]]
    assert list(dict.fromkeys(groups)) == [
        "software", "machine", "GPU", "compilers", "kernels", "disk", "run",
    ]  # fmt: skip
    states = {check["name"]: check["state"] for check in found["checks"]}
    assert states["packages"] == states["model"] == states["results"] == "ok"
    assert not any(Path().iterdir())  # the disk test leaves nothing


@pytest.mark.parametrize(
    "arguments, text",
    [
        (["--model", "no/such"], "no/such"),
        (["--device", "cuda:99"], "this machine has"),
        (["--top-p", "7"], "expected above 0"),
        (["--num-threads", "0"], "--num-threads=0: expected a whole number, 1 to 1024"),
        (["--device", "cpu", "--kernels", "folder"], "compiled kernels are for GPUs"),
        (["--ep", "3"], "--expert-parallel-size=3 does not divide"),
        (["--num-blocks", "1", "--max-model-len", "100"], "raise --num-blocks"),
        (["--regex", "("], "--regex"),
        (["--config", "none.yaml"], "none.yaml"),
    ],
)
def test_what_would_end_a_run_is_a_problem(
    cli: Callable[..., Any], arguments: list[str], text: str
) -> None:
    done = cli("doctor", *arguments)
    shown = " ".join(done.out.decode().split())
    assert done.exit_code == 1 and text in shown
    assert "Not ready: deepinfer run would fail (1 found)" in shown


def test_kernels_that_a_gpu_run_would_not_find(
    cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine with an H200: no such folder, none in it, one for another model; then one."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    memory = DeviceMemory(total_bytes=140 << 30, free_bytes=139 << 30)
    monkeypatch.setattr(DeviceMemory, "of", lambda device: memory)

    def shown(verb: str, *more: str) -> tuple[int, str]:
        done = cli(verb, *more, "--device", "cuda", "--kernels", "store")
        return done.exit_code, " ".join((done.out.decode() + done.err).split())

    Path("rows.jsonl").write_text('{"prompt": "Hello."}\n')

    def refused(reason: str) -> None:
        for verb, *more in (("doctor",), ("plan", "rows.jsonl")):
            code, text = shown(verb, *more)
            assert code and f"--kernels=store{reason}" in text and "deepinfer build" in text, text

    refused(": no such folder")
    Path("store").mkdir()
    refused(" has none for this run (it holds no bundle)")
    for name in ("full", "tiny"):
        identity = nvidia_identity(model_config(name).to_dict(), name, "sm90a")
        build_bundle(Path("store"), identity, lambda: ([], []))
        if name == "full":
            refused(" has none for this run (sm90a-")
    assert "has none for this run" not in shown("doctor")[1]


def test_it_can_be_pasted(cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """No value of a variable or setting, no name of a user."""
    home = Path("home/somebody").resolve()
    home.mkdir(parents=True)
    for name, value in {
        "HOME": str(home), "HF_TOKEN": "hf_secret1", "DEEPINFER_SEED": "4321234",
        "DEEPINFER_TOP_P": "secret2",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    shown = cli("doctor").out.decode()
    assert "DEEPINFER_TOP_P=…: expected a number" in " ".join(shown.split())
    monkeypatch.delenv("DEEPINFER_TOP_P")
    shown += cli("doctor", "--speculation-profile", str(home / "times.json")).out.decode()
    shown = " ".join(shown.split())
    assert "seed (DEEPINFER_SEED)" in shown and "~/times.json" in shown
    for secret in ("somebody", "secret1", "secret2", "4321234"):
        assert secret not in shown


def test_foreign_packages_under_our_names(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for place in (ours / "deepinfer", theirs / "deepinfer", theirs / "kernels", theirs / "engine"):
        place.mkdir(parents=True)
        (place / "__init__.py").touch()
    (theirs / "recipes").mkdir()  # a folder without code is no package
    owners = {"deepinfer": ["deepinfer-cli", "deepinfer"], "kernels": ["kernels"]}
    checks = list(shadow_checks(ours, [str(ours), str(theirs)], owners))
    assert _states(checks) == {
        "other owners": "warning", "other deepinfer": "warning", "same names": "note",
    }  # fmt: skip
    texts = {check.name: check.text for check in checks}
    assert "also belongs to deepinfer," in texts["other owners"]
    assert str(theirs / "kernels") in texts["same names"] and "recipes" not in texts["same names"]
    assert list(shadow_checks(ours, [str(ours)], {"deepinfer": ["deepinfer-cli"]})) == []


def test_a_foreign_deepinfer_is_seen_by_the_program(in_tmp: Path) -> None:
    (in_tmp / "deepinfer").mkdir()
    (in_tmp / "deepinfer" / "__init__.py").write_text("raise ImportError('not ours')\n")
    code = "import sys; from deepinfer_cli.main import main; sys.exit(main(['doctor', '--json']))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        capture_output=True,
        env={**os.environ, "PYTHONPATH": f"{Path(__file__).parents[2]}:{in_tmp}"},
    )
    checks = json.loads(done.stdout)["checks"]
    other = next(check for check in checks if check["name"] == "other deepinfer")
    assert done.returncode == 0 and str(in_tmp / "deepinfer") in other["text"]


def test_a_broken_part_is_a_finding_not_a_crash(
    cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> Any:
        raise OSError("no /proc here")

    monkeypatch.setattr(hardware, "host", broken)
    monkeypatch.setitem(sys.modules, "deepinfer_cli.doctor.readiness", None)
    done = cli("doctor", "--json")
    found = {check["group"]: check for check in json.loads(done.out)["checks"]}
    assert done.exit_code == 1
    assert found["machine"]["text"] == "could not be looked at: OSError: no /proc here"
    assert found["run"]["state"] == "problem" and found["disk"]["state"] == "ok"


def test_memory_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = MemoryPlan(
        weight_bytes=100, block_bytes=10, num_blocks=5, block_size=64, slot_bytes=0,
        max_num_seqs=1, snapshot_bytes=0, max_model_len=64,
    )  # fmt: skip
    dry_run: Any = SimpleNamespace(memory=plan, config=SimpleNamespace(device="cpu"))
    states = []
    for free in (1000, 120, 40):
        machine = SimpleNamespace(available_bytes=free)
        monkeypatch.setattr(readiness, "host", lambda machine=machine: machine)
        states.append(memory_check(dry_run).state)
    assert states == ["ok", "warning", "problem"]


def test_disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (check,) = disk_checks(tmp_path)
    assert check.state == "ok" and "sync" in check.text and not any(tmp_path.iterdir())
    (check,) = disk_checks(tmp_path / "missing")
    assert check.state == "problem" and "no such file" in check.text
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=1000))
    (check,) = disk_checks(tmp_path)
    assert check.state == "warning" and "free some space" in check.advice


def test_compilers_matter_on_a_gpu_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert _states(compiler_checks(False))["gcc"] == "note"
    assert _states(compiler_checks(True))["gcc"] == "problem"
    (tmp_path / "gcc").write_text("#!/bin/sh\necho gcc 99\n")
    (tmp_path / "gcc").chmod(0o755)
    assert next(compiler_checks(True)).text == "gcc 99"
    for version, state in (("12.2.0", "note"), ("13.1.0", "ok"), ("9", "ok"), ("4.8.5", "note")):
        (tmp_path / "gcc").write_text(f"#!/bin/sh\necho 'gcc (Debian {version}-14) {version}'\n")
        check = next(compiler_checks(True))
        assert check.state == state, version
        assert ("build.sh --release needs 13 or newer" in check.text) == (state == "note")
    (tmp_path / "gcc").write_text("#!/bin/sh\nexit 1\n")
    assert line_of([str(tmp_path / "gcc")]) is None


def test_bundles(tmp_path: Path) -> None:
    (check,) = bundle_checks(tmp_path)
    assert check.state == "note" and check.text.startswith("none in ")
    (tmp_path / "sm90a-1").mkdir()
    (tmp_path / "sm90a-1" / "manifest.json").write_text("{}")
    (check,) = bundle_checks(tmp_path)
    assert check.state == "warning" and "is not a bundle" in check.text


def test_step_times(tmp_path: Path) -> None:
    path = tmp_path / "times.json"
    found = _states(run_checks({"speculation_profile": str(path)}, None))
    assert found["step times"] == "note"
    path.write_text("[]")
    found = _states(run_checks({"speculation_profile": str(path)}, None))
    assert found["step times"] == "problem"


def test_home_is_shortened_only_where_it_is_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert shown_path("/home/me/x") == "~/x" and shown_path("/home/me") == "~"
    assert shown_path("/home/mean/x") == "/home/mean/x"
    monkeypatch.setenv("HOME", "/")
    assert shown_path("/data") == "/data"


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_lines_fit_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    checks = [Check(group="a", name="n" * 12, state="warning", text="word " * 60, advice="do it")]
    for encoding, mark in (("utf-8", "!"), ("ascii", "!")):
        with (tmp_path / "out").open("w", encoding=encoding, errors="replace") as file:
            print_checks([*checks, Check(group="b", name="x", state="ok", text="y")], file)
        lines = (tmp_path / "out").read_text(encoding=encoding).splitlines()
        assert max(map(len, lines)) <= columns and f"  {mark} nnnnnnnnnnnn" in lines[1]
        assert lines[-1].startswith(("Ready", "better")) or columns == 40
