"""Full disks: the run stops cleanly, says what it needs, and goes on when there is room."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deepinfer_cli.output.partial import PartialFolder
from deepinfer_cli.output.paths import OutputPaths

Cli = Callable[..., Any]
Process = Callable[..., Any]
_NUM_ROWS = 1_000
_JOURNAL_BYTES = 520 * _NUM_ROWS


def _prompts(count: int) -> bytes:
    return b"".join(b'{"prompt": "p%d"}\n' % index for index in range(count))


@pytest.fixture
def small_disk(in_tmp: Path) -> Iterator[Callable[[int], Path]]:
    """``small_disk(100_000)``: a file system of that many bytes; again: the same one, resized."""
    folder = in_tmp / "small"
    folder.mkdir()
    mounted = False

    def mount(num_bytes: int) -> Path:
        nonlocal mounted
        how = "remount," if mounted else ""
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"{how}size={num_bytes}", "tmpfs", str(folder)],
            capture_output=True,
        )
        if done.returncode:
            pytest.skip("this user may not mount a tmpfs")
        mounted = True
        return folder

    yield mount
    if mounted:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize(
    "ending, share",
    [("jsonl", 1.1), pytest.param("jsonl", 0.3, marks=pytest.mark.slow), ("parquet", 0.6)],
)
def test_a_full_disk_at_any_time(
    process: Process, small_disk: Callable[[int], Path], ending: str, share: float
) -> None:
    """The disk holds this share of the journal: it is full while rows are answered, or later."""
    Path("in.jsonl").write_bytes(_prompts(_NUM_ROWS) + b"bad\n")
    folder = small_disk(round(share * _JOURNAL_BYTES))
    output = folder / f"out.{ending}"
    full = process("run", "in.jsonl", "-o", output, "-q")
    assert full.exit_code == 1, full.err
    [line] = full.err.splitlines()
    assert "no space left on device" in line and " free" in line and "free some space" in line
    assert "more are needed" in line
    assert not output.exists()
    held = (folder / f"out.{ending}.partial/journal").read_bytes().count(b"\n")
    assert held > 100 and f"{held:,} finished rows are kept" in line
    small_disk(64 * 2**20)
    state = json.loads(process("status", output, "--json").out)
    assert state["rows"]["done"] == held
    again = process("run", "in.jsonl", "-o", output, "-q")
    assert again.exit_code == 3, again.err
    assert (held == _NUM_ROWS + 1) == (share > 1)
    report = json.loads(Path(f"{output}.report.json").read_bytes())
    assert report["rows"] == {
        "input": _NUM_ROWS + 1, "results": _NUM_ROWS, "errors": 1, "resumed": held,
    }  # fmt: skip
    whole = f"whole.{ending}"
    assert process("run", "in.jsonl", "-o", whole, "-q").exit_code == 3
    assert output.read_bytes() == Path(whole).read_bytes()


def test_a_disk_without_room_for_a_beginning(
    process: Process, small_disk: Callable[[int], Path]
) -> None:
    Path("in.jsonl").write_bytes(_prompts(3))
    folder = small_disk(4096)
    full = process("run", "in.jsonl", "-o", folder / "out.jsonl")
    assert full.exit_code == 1 and not list(folder.iterdir())
    [line] = full.err.splitlines()
    assert line.startswith(f"deepinfer: no space left on device: {folder} has 0.0 MB free; free")


def test_what_was_measured_survives_a_full_disk(
    in_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> None:
        path.touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with PartialFolder(OutputPaths(in_tmp / "out.jsonl")) as folder:
        for is_last in (False, True):
            folder.keep_report(b"earlier", is_last=is_last)
        kept = {path.name: path.read_bytes() for path in folder.path.iterdir()}
        assert kept.keys() == {"lock", "earlier.json", "report.json"}
        with monkeypatch.context() as patch:
            patch.setattr(Path, "write_bytes", full)
            for is_last in (False, True):
                folder.keep_report(b"later", is_last=is_last)
        assert kept == {path.name: path.read_bytes() for path in folder.path.iterdir()}


def test_stdout_needs_room_for_waiting_rows(
    process: Process, small_disk: Callable[[int], Path]
) -> None:
    folder = small_disk(100_000)
    full = process(
        "run", "-", "-q", stdin=_prompts(_NUM_ROWS), env={**os.environ, "TMPDIR": str(folder)}
    )
    assert full.exit_code == 1 and 0 < full.out.count(b"\n") < _NUM_ROWS
    assert f"no space left on device: {folder} has 0.0 MB free" in full.err
    assert full.err.endswith("rows that wait for their turn are kept there (TMPDIR)\n")


def test_a_full_disk_behind_stdout_is_named(in_tmp: Path, command: list[str]) -> None:
    Path("in.jsonl").write_bytes(_prompts(30))
    line = " ".join([*command, "run in.jsonl -o - -q > /dev/full"])
    done = subprocess.run(["bash", "-c", line], capture_output=True, timeout=240)
    words = b"deepinfer: no space left on device: stdout\n"
    assert (done.returncode, done.stderr) == (1, words)


class _Fault:
    """Makes the n-th call of a function of ``os`` fail, once; ``short``: half of it is written."""

    def __init__(
        self, patch: pytest.MonkeyPatch, name: str, nth: int, number: int, short: bool
    ) -> None:
        self._real, self._left = getattr(os, name), nth
        self._number, self._short = number, short
        self.was_met = False
        patch.setattr(os, name, self)

    def __call__(self, *arguments: Any) -> Any:
        self._left -= 1
        if self._left == 0:
            self.was_met = True
            if self._short:
                descriptor, data, offset = arguments
                self._real(descriptor, bytes(data)[: len(data) // 2], offset)
            raise OSError(self._number, os.strerror(self._number))
        return self._real(*arguments)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize(
    "name, nth",
    [("pwrite", nth) for nth in (1, 2, 3, 20, 41)] + [("fsync", nth) for nth in (1, 2, 3, 4, 5)],
)
def test_any_write_may_fail(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, name: str, nth: int, number: int
) -> None:
    Path("in.jsonl").write_bytes(_prompts(30) + b"bad\n")
    assert cli("run", "in.jsonl", "-o", "whole.jsonl").exit_code == 3
    with monkeypatch.context() as patch:
        fault = _Fault(patch, name, nth, number, short=name == "pwrite")
        failed = cli("run", "in.jsonl", "-o", "out.jsonl")
    assert fault.was_met
    assert failed.exit_code == 1 and os.strerror(number).lower() in failed.err, failed.err
    assert "Traceback" not in failed.err
    assert not Path("out.jsonl").exists()
    again = cli("run", "in.jsonl", "-o", "out.jsonl")
    assert again.exit_code == 3
    for ending in ("", ".errors.jsonl"):
        assert Path("out.jsonl" + ending).read_bytes() == Path("whole.jsonl" + ending).read_bytes()
