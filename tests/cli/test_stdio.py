"""A message never ends a run, and nothing of a library's ends up in our files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from deepinfer_cli.run.stopping import StopSwitch
from deepinfer_cli.stdio import StderrWriter

Start = Callable[..., "subprocess.Popen[bytes]"]


def _prompts(count: int) -> bytes:
    return b"".join(b'{"prompt": "p%d"}\n' % index for index in range(count))


def _shell(command: list[str], line: str) -> int:
    script = line.replace("deepinfer", " ".join(command))
    return subprocess.run(["bash", "-c", script], capture_output=True, timeout=240).returncode


@pytest.mark.parametrize(
    "line",
    [
        "deepinfer run in.jsonl 2> /dev/full",
        "deepinfer run in.jsonl 2>&-",
        "deepinfer run in.jsonl <&- >&- 2>&-",
        # pipefail: the exit code of the run, whose log nobody reads
        "set -o pipefail; deepinfer run in.jsonl 2>&1 >/dev/null | true",
    ],
)
def test_a_run_without_stderr_goes_on(in_tmp: Path, command: list[str], line: str) -> None:
    Path("in.jsonl").write_bytes(_prompts(20))
    assert _shell(command, line) == 0
    assert Path("in.out.jsonl").read_bytes().count(b"\n") == 20
    assert _shell(command, "deepinfer run in.jsonl 2> /dev/full") == 2


@pytest.mark.parametrize("stderr", ["2>/dev/full", "2>&-"])
def test_verbs_without_stderr_do_their_work(in_tmp: Path, command: list[str], stderr: str) -> None:
    """And what they would have said is not on stdout."""
    Path("in.jsonl").write_bytes(_prompts(4))
    for shard in ("1/2", "2/2"):
        assert _shell(command, f"deepinfer run in.jsonl -q --shard {shard} -o out.jsonl") == 0
    program = " ".join(command)
    summarize = "from deepinfer_cli.build.bundle_report import summarize; summarize([], 1.0)"
    for line in (
        f"{program} merge -o out.jsonl",
        f"{program} config init",
        f"{sys.executable} -c '{summarize}'",
    ):
        done = subprocess.run(["bash", "-c", f"{line} {stderr}"], capture_output=True, timeout=240)
        assert (done.returncode, done.stdout) == (0, b""), line
    assert Path("out.jsonl").read_bytes().count(b"\n") == 4 and Path("deepinfer.yaml").exists()


def test_everything_for_people_goes_through_stdio() -> None:
    folder = Path(__file__).parents[2] / "deepinfer_cli"
    direct = [p.name for p in folder.rglob("*.py") if "sys.stderr" in p.read_text(encoding="utf-8")]
    assert direct == ["stdio.py"]


def test_what_a_library_writes_to_closed_descriptors_is_in_no_file(in_tmp: Path) -> None:
    """The first files that are opened would become descriptors 0, 1 and 2."""
    Path("in.jsonl").write_bytes(_prompts(3))
    fake = Path(__file__).parent
    script = f"""
import os, sys
sys.path.insert(0, {str(fake)!r})
from fake_engine import FakeEngine
from deepinfer_cli.main import main
class Chatty(FakeEngine):
    def _answer(self, *arguments):
        for descriptor in (0, 1, 2):
            os.write(descriptor, b"a warning of some library, longer than a record is\\n" * 9)
        return super()._answer(*arguments)
sys.exit(main(["run", "in.jsonl", "-o", "out.jsonl"], Chatty))
"""
    Path("script.py").write_text(script)
    assert _shell([sys.executable], "deepinfer script.py <&- >&- 2>&-") == 0
    assert Path("out.jsonl").read_bytes().count(b"\n") == 3


def test_stderr_is_not_buffered() -> None:
    read, write = os.pipe()
    try:
        stderr = StderrWriter(write)
        assert stderr.write("é\udcff\n") == 3 and os.read(read, 100) == "é\\udcff\n".encode()
        os.set_blocking(write, False)
        assert stderr.write("x" * 1_000_000) == 1_000_000  # nobody reads: dropped
        assert set(os.read(read, 100)) == {ord("x")}
    finally:
        os.close(read)
        os.close(write)


def _wait_for(what: Callable[[], bool]) -> None:
    until = time.monotonic() + 120
    while not what():
        assert time.monotonic() < until
        time.sleep(0.02)


def _num_kept(output: str) -> int:
    journal = Path(output + ".partial") / "journal"
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


@pytest.mark.parametrize("ends_by", ["--time-limit", "Ctrl-C"])
def test_a_silent_input_does_not_hold_the_run(start: Start, ends_by: str) -> None:
    """Eight rows come, then nothing, and nobody closes the pipe."""
    read, write = os.pipe()
    limit = ("--time-limit", "4s") if ends_by == "--time-limit" else ()
    running = start("run", "-", "-o", "out.jsonl", *limit, stdin=read)
    os.close(read)
    os.write(write, _prompts(20))
    try:
        _wait_for(lambda: _num_kept("out.jsonl") >= 16)  # the engine answers eight at a time
        if ends_by == "Ctrl-C":
            running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=120)
    finally:
        os.close(write)
    assert running.returncode == (75 if limit else 130), err
    report = json.loads(Path("out.jsonl.partial/report.json").read_bytes())
    assert report["rows"]["results"] == 20 and report["status"] == "stopped"


def test_a_reader_that_does_not_read_does_not_hold_a_stopped_run(start: Start) -> None:
    Path("in.jsonl").write_bytes(b'{"prompt": "%s"}\n' % (b"x" * 9_000) * 60)
    running = start("run", "in.jsonl", "-o", "-", "-q")
    time.sleep(2)  # its pipe is full by then, or it is not and the test says less
    running.send_signal(signal.SIGTERM)
    assert running.wait(20) in (143, -signal.SIGTERM)


def test_a_removed_folder_is_noticed_and_nothing_is_promised(start: Start) -> None:
    Path("in.jsonl").write_bytes(_prompts(2_000))
    running = start("run", "in.jsonl", "-o", "out.jsonl", seconds_per_row=0.02)
    _wait_for(lambda: _num_kept("out.jsonl") >= 3)
    for path in Path("out.jsonl.partial").iterdir():
        path.unlink(missing_ok=True)
    _, err = running.communicate(timeout=120)
    assert running.returncode == 1
    assert b"out.jsonl.partial was deleted" in err and b"are kept" not in err


def test_what_was_ignored_stays_ignored(in_tmp: Path, command: list[str]) -> None:
    """As by nohup, and by shells for jobs in the background of a script."""
    Path("in.jsonl").write_bytes(_prompts(60))
    running = subprocess.Popen(
        ["nohup", *command, "run", "in.jsonl", "-o", "out.jsonl"],
        env={**os.environ, "FAKE_SECONDS_PER_ROW": "0.05"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_for(lambda: _num_kept("out.jsonl") >= 3)
        running.send_signal(signal.SIGHUP)
        assert running.wait(120) == 0
    finally:
        running.kill()
        running.wait()


def test_the_alarm_of_a_caller_is_given_back() -> None:
    """Such as that of a test with a timeout: only a time limit takes it, for a while."""
    before = signal.signal(signal.SIGALRM, lambda number, frame: None)
    signal.setitimer(signal.ITIMER_REAL, 1_000)
    try:
        for limit in (None, 50.0):
            with StopSwitch(limit).on_signals(print, lambda: True):
                left, _ = signal.getitimer(signal.ITIMER_REAL)
                assert left <= 50 if limit else left > 900
            assert signal.getitimer(signal.ITIMER_REAL)[0] > 900
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
