"""The program as a process: pipes, signals, kill -9, two at once, bare environments."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Process = Callable[..., Any]
_BARE = {"PATH": os.defpath, "PYTHONPATH": str(Path(__file__).parents[2])}


def _prompts(count: int) -> bytes:
    return b"".join(b'{"prompt": "p%d"}\n' % index for index in range(count))


def _wait_for_rows(output: str, count: int, running: subprocess.Popen[bytes]) -> None:
    """Until the journal of a running process holds ``count`` rows."""
    journal = Path(output + ".partial") / "journal"
    until = time.monotonic() + 120
    while not journal.exists() or journal.read_bytes().count(b"\n") < count:
        assert running.poll() is None and time.monotonic() < until
        time.sleep(0.01)


def test_stdin_to_stdout_in_a_bare_environment(process: Process) -> None:
    done = process("run", "-", stdin=_prompts(3) + b"bad\n" + '{"prompt":"é"}'.encode(), env=_BARE)
    assert done.exit_code == 3
    assert [row.get("content") for row in done.rows] == ["p0", "p1", "p2", None, "é"]
    assert done.rows[3]["error"]["kind"] == "invalid_json"
    assert "é".encode() in done.out


@pytest.mark.parametrize("language", ["C", "POSIX", "en_US.ISO-8859-1"])
def test_the_bytes_do_not_depend_on_the_locale(process: Process, language: str) -> None:
    data = '{"prompt":"é→"}'.encode()
    Path("é.jsonl").write_bytes(data)
    piped = process("run", "-", stdin=data, env=_BARE | {"LC_ALL": language, "LANG": language})
    assert piped.exit_code == 0 and "é→".encode() in piped.out
    named = process("run", "é.jsonl", "-o", "-", env=_BARE | {"LC_ALL": language})
    assert (named.exit_code, named.out) == (0, piped.out)


def test_results_and_files_are_the_same_from_shell_and_bare_environment(process: Process) -> None:
    Path("in.jsonl").write_bytes(_prompts(9))
    assert process("run", "in.jsonl", "-o", "a.jsonl").exit_code == 0
    assert process("run", "in.jsonl", "-o", "b.jsonl", env=_BARE).exit_code == 0
    assert Path("a.jsonl").read_bytes() == Path("b.jsonl").read_bytes()


def test_a_closed_pipe_is_quiet(in_tmp: Path, command: list[str]) -> None:
    Path("in.jsonl").write_bytes(_prompts(9_000))
    program = " ".join(command)
    done = subprocess.run(
        ["bash", "-c", f"{program} run in.jsonl -o - -q | head -1; exit ${{PIPESTATUS[0]}}"],
        capture_output=True,
        timeout=240,
    )
    assert done.returncode == 141 and done.stderr == b""
    assert done.stdout.count(b"\n") == 1


@pytest.mark.parametrize("verb", ["config show", "run --help", "status out.jsonl", "--version"])
def test_a_closed_pipe_is_told_alike_by_every_verb(
    cli: Process, command: list[str], verb: str
) -> None:
    Path("in.jsonl").write_bytes(_prompts(1))
    assert cli("run", "in.jsonl", "-o", "out.jsonl", "-q").exit_code == 0
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*command, *verb.split()], stdout=writing, stderr=subprocess.PIPE, timeout=240
    )
    os.close(writing)
    assert done.returncode == 141 and done.stderr == b""


def test_a_read_only_folder_of_inputs(process: Process) -> None:
    folder = Path("inputs")
    folder.mkdir()
    (folder / "in.jsonl").write_bytes(_prompts(2))
    (folder / "in.jsonl").chmod(0o444)
    folder.chmod(0o555)
    try:
        assert process("run", "inputs/in.jsonl", "-o", "out.jsonl").exit_code == 0
        if os.geteuid() != 0:
            refused = process("run", "inputs/in.jsonl")
            assert refused.exit_code == 2 and "cannot write inputs/" in refused.err
    finally:
        folder.chmod(0o755)


def test_a_full_disk_is_said_plainly(process: Process) -> None:
    """A limit on the size of files stands for the full disk: the same kind of error, anywhere."""
    Path("in.jsonl").write_bytes(_prompts(9_000))
    script = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20));"
        "import os; os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    fake = Path(__file__).with_name("fake_engine.py")
    done = subprocess.run(
        [sys.executable, "-c", script, str(fake), "run", "in.jsonl", "-o", "out.jsonl", "-q"],
        capture_output=True,
        timeout=240,
    )
    assert done.returncode == 1
    [line] = done.stderr.decode().splitlines()
    assert "file too large" in line and "finished rows are kept" in line
    again = process("run", "in.jsonl", "-o", "out.jsonl")
    assert again.exit_code == 0
    report = json.loads(Path("out.jsonl.report.json").read_bytes())
    assert report["rows"]["results"] == 9_000 and report["rows"]["resumed"] > 1_000


def test_two_runs_on_one_output(start: Any, process: Process) -> None:
    Path("in.jsonl").write_bytes(_prompts(200))
    first = start("run", "in.jsonl", "-o", "out.jsonl", seconds_per_row=0.01)
    _wait_for_rows("out.jsonl", 1, first)
    first.send_signal(signal.SIGSTOP)  # it must not be finished when the second one starts
    second = process("run", "in.jsonl", "-o", "out.jsonl")
    first.send_signal(signal.SIGCONT)
    assert second.exit_code == 5
    assert f"process {first.pid}" in second.err
    assert first.wait(120) == 0
    first.communicate()


def test_ctrl_c_once_finishes_what_runs_and_saves(start: Any, process: Process) -> None:
    Path("in.jsonl").write_bytes(_prompts(500))
    running = start("run", "in.jsonl", "-o", "out.jsonl", seconds_per_row=0.01)
    _wait_for_rows("out.jsonl", 3, running)
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=120)
    assert running.returncode == 130
    assert b"Traceback" not in err and b"Ctrl-C" in err
    report = json.loads(Path("out.jsonl.partial/report.json").read_bytes())
    assert report["rows"]["results"] == report["rows"]["input"] < 500
    assert process("run", "in.jsonl", "-o", "out.jsonl").exit_code == 0
    assert Path("out.jsonl").read_bytes().count(b"\n") == 500


@pytest.mark.parametrize("numbers, code", [([signal.SIGINT] * 2, 130), ([signal.SIGTERM], 143)])
def test_sigterm_and_a_second_ctrl_c_leave_at_once(
    start: Any, numbers: list[signal.Signals], code: int
) -> None:
    Path("in.jsonl").write_bytes(_prompts(8))
    running = start("run", "in.jsonl", "-o", "out.jsonl", seconds_per_row=1.0)
    _wait_for_rows("out.jsonl", 1, running)
    for number in numbers:
        running.send_signal(number)
        time.sleep(0.5)
    _, err = running.communicate(timeout=120)
    assert running.returncode == code and b"Traceback" not in err
    assert Path("out.jsonl.partial/journal").read_bytes().count(b"\n") < 8


@pytest.mark.crash
def test_kill_9_at_random_moments_loses_and_repeats_nothing(start: Any, process: Process) -> None:
    """Killed again and again, then left to finish: the same bytes as an unbroken run."""
    Path("in.jsonl").write_bytes(_prompts(300) + b"bad\n" + _prompts(300))
    assert process("run", "in.jsonl", "-o", "whole.jsonl").exit_code == 3
    chance = random.Random(7)
    kept = 0
    for _ in range(5):
        running = start("run", "in.jsonl", "-o", "out.jsonl", seconds_per_row=0.001)
        _wait_for_rows("out.jsonl", min(kept + chance.randrange(1, 80), 590), running)
        running.send_signal(signal.SIGKILL)
        running.communicate(timeout=120)
        now = Path("out.jsonl.partial/journal").read_bytes().count(b"\n")
        assert now >= kept
        kept = now
    assert not Path("out.jsonl").exists()
    assert process("run", "in.jsonl", "-o", "out.jsonl").exit_code == 3
    for ending in ("", ".errors.jsonl"):
        assert Path("out.jsonl" + ending).read_bytes() == Path("whole.jsonl" + ending).read_bytes()
    rows = json.loads(Path("out.jsonl.report.json").read_bytes())["rows"]
    assert rows["input"] == 601 and rows["resumed"] >= kept - 1


_STEPS_OF_FINISH = ["measured", "errors", "report", "results", "removed"]


@pytest.mark.crash
@pytest.mark.parametrize("step", range(len(_STEPS_OF_FINISH)))
def test_kill_9_inside_the_finish(in_tmp: Path, process: Process, step: int) -> None:
    """Die right before each renaming of the finish; the same command again completes it."""
    Path("in.jsonl").write_bytes(_prompts(5) + b"bad\n")
    assert process("run", "in.jsonl", "-o", "whole.jsonl").exit_code == 3
    fake = Path(__file__).parent
    script = f"""
import os, pathlib, shutil, signal, sys
sys.path.insert(0, {str(fake)!r})
from fake_engine import FakeEngine
from deepinfer_cli.main import main
calls = 0
def dying(real):
    def call(*arguments, **options):
        global calls
        if pathlib.Path(arguments[0]).name not in ("run.json.new", "status.json.new"):
            if calls == {step}:
                os.kill(os.getpid(), signal.SIGKILL)
            calls += 1
        return real(*arguments, **options)
    return call
pathlib.Path.replace = dying(pathlib.Path.replace)
shutil.rmtree = dying(shutil.rmtree)
main(["run", "in.jsonl", "-o", "out.jsonl"], FakeEngine)
"""
    assert subprocess.run([sys.executable, "-c", script], capture_output=True).returncode == -9
    assert Path("out.jsonl").exists() == (step == _STEPS_OF_FINISH.index("removed"))
    assert process("run", "in.jsonl", "-o", "out.jsonl").exit_code == 3
    for ending in ("", ".errors.jsonl"):
        assert Path("out.jsonl" + ending).read_bytes() == Path("whole.jsonl" + ending).read_bytes()
    assert not Path("out.jsonl.partial").exists()
