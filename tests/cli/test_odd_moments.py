"""What may happen to the files of a run, and to itself, while it goes on."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run_files import assert_refused, counts, prompts, read_report, read_rows, write_rows

Cli = Callable[..., Any]
Process = Callable[..., Any]


def _begun(start: Any, count: int = 300, least: int = 8) -> subprocess.Popen[bytes]:
    """A run in the folder ``work`` that has finished some rows."""
    write_rows("in.jsonl", prompts(count))
    Path("work").mkdir()
    running: subprocess.Popen[bytes] = start(
        "run", "in.jsonl", "-o", "work/out.jsonl", "-q", seconds_per_row=0.005
    )
    journal = Path("work/out.jsonl.partial/journal")
    until = time.monotonic() + 120
    while not journal.exists() or journal.read_bytes().count(b"\n") < least:
        assert running.poll() is None and time.monotonic() < until
        time.sleep(0.01)
    return running


def _line(running: subprocess.Popen[bytes]) -> str:
    _, err = running.communicate(timeout=240)
    assert b"Traceback" not in err
    return err.decode()


def test_the_folder_of_the_output_is_moved(start: Any, process: Process) -> None:
    """The rows went with it: the run says where it cannot write, and goes on at the new place."""
    running = _begun(start)
    Path("work").rename("moved")
    said = _line(running)
    assert running.returncode == 1 and "work/out.jsonl.partial" in said
    assert not Path("work").exists()
    again = process("run", "in.jsonl", "-o", "moved/out.jsonl", "-q")
    assert again.exit_code == 0
    assert counts("moved/out.jsonl") == (300, 0)
    assert read_report("moved/out.jsonl")["rows"]["resumed"] >= 8


def test_the_input_is_removed_meanwhile(start: Any) -> None:
    """It is open: every row of it is answered."""
    running = _begun(start)
    Path("in.jsonl").unlink()
    assert _line(running) == "" and running.returncode == 0
    assert counts("work/out.jsonl") == (300, 0)


@pytest.mark.parametrize("left", [0, 5])
def test_the_input_is_cut_between_two_parts(start: Any, process: Process, left: int) -> None:
    """Its answers are not thrown away with it, unless somebody says so."""
    running = _begun(start)
    running.kill()
    running.wait(120)
    write_rows("in.jsonl", prompts(left))
    again = process("run", "in.jsonl", "-o", "work/out.jsonl", "-q")
    assert again.exit_code == 4
    assert f"in.jsonl has {left} rows now, and " in again.err and "are kept" in again.err
    state = json.loads(process("status", "work/out.jsonl", "--json").out)
    assert (state["state"], state["exit_code"]) == ("failed", 4) and state["rows"]["done"] >= 8
    limited = process("run", "in.jsonl", "-o", "work/out.jsonl", "-q", "--limit", "3", "--force")
    assert limited.exit_code == 0 and counts("work/out.jsonl") == (min(left, 3), 0)


def test_another_input_for_the_output_of_an_unfinished_run(start: Any, process: Process) -> None:
    """As of a loop over files that all name one output."""
    running = _begun(start)
    running.kill()
    running.wait(120)
    write_rows("other.jsonl", [{"prompt": f"other {index}"} for index in range(300)])
    other = ("run", "other.jsonl", "-o", "work/out.jsonl", "-q")
    assert_refused(
        process(*other), 4, "line 1 differs from the row answered before, which came from "
    )
    shutil.copy("in.jsonl", "copy.jsonl")
    again = process("run", "copy.jsonl", "-o", "work/out.jsonl", "-q", "--limit", "200")
    assert again.exit_code == 0 and read_report("work/out.jsonl")["rows"]["resumed"] >= 8
    assert process(*other, "--force").exit_code == 0
    assert read_rows("work/out.jsonl")[0]["content"] == "other 0"


def test_the_lock_is_removed_meanwhile(start: Any, process: Process) -> None:
    """Another run may begin then; the end of both is one whole output."""
    running = _begun(start, count=150)
    Path("work/out.jsonl.partial/lock").unlink()
    second = process("run", "in.jsonl", "-o", "work/out.jsonl", "-q")
    _line(running)
    assert {running.returncode, second.exit_code} <= {0, 1, 2}
    if not Path("work/out.jsonl").exists():
        assert process("run", "in.jsonl", "-o", "work/out.jsonl", "-q").exit_code == 0
    assert counts("work/out.jsonl") == (150, 0)


def test_the_journal_is_cut_meanwhile(start: Any, process: Process) -> None:
    running = _begun(start)
    os.truncate("work/out.jsonl.partial/journal", 700)
    said = _line(running)
    assert running.returncode == 1 and "run the same command again" in said
    assert process("run", "in.jsonl", "-o", "work/out.jsonl", "-q").exit_code == 0
    assert counts("work/out.jsonl") == (300, 0)


def test_stopped_and_continued(start: Any) -> None:
    running = _begun(start)
    for _ in range(3):
        running.send_signal(signal.SIGSTOP)
        time.sleep(0.05)
        running.send_signal(signal.SIGCONT)
        time.sleep(0.02)
    assert _line(running) == "" and running.returncode == 0
    assert counts("work/out.jsonl") == (300, 0)


def _wait_until_it_waits(running: subprocess.Popen[bytes]) -> None:
    """Asleep for a second, and not only in want of a processor."""
    until, asleep = time.monotonic() + 120, 0
    while asleep < 10:
        time.sleep(0.1)
        state = Path(f"/proc/{running.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        asleep = asleep + 1 if state == "S" else 0
        assert time.monotonic() < until


def test_signals_before_the_first_row(start: Any) -> None:
    """Waiting for a pipe that nobody writes is no reason not to leave."""
    os.mkfifo("silent.jsonl")
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        running = start("run", "silent.jsonl", "-o", "out.jsonl")
        _wait_until_it_waits(running)
        running.send_signal(number)
        _, err = running.communicate(timeout=120)
        assert running.returncode in (code, -number), err
        assert b"Traceback" not in err
    assert [path.name for path in Path().iterdir()] == ["silent.jsonl"]


def test_text_of_a_row_does_not_reach_the_terminal_as_it_is(cli: Cli) -> None:
    hostile = "\x1b[2J\x1b]0;owned\x07\x9b31m"
    write_rows("in.jsonl", [{"prompt": "a", "fail": hostile}] * 3)
    done = cli("run", "in.jsonl", "-o", "out.jsonl", "--max-errors", "0")
    assert done.exit_code == 4
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", done.err)


@pytest.mark.parametrize("source", ["-", "pipe"])
def test_what_can_be_read_once_is_not_retried(process: Process, source: str) -> None:
    """The rows are needed twice; the second time they would seem to be gone, and their results."""
    rows = b'{"prompt": "a", "fail": "device"}\n{"prompt": "b"}\n'
    os.mkfifo("pipe")
    for flags, code in (((), 3), (("--retry-failed",), 2)):
        if source == "pipe":
            writer = threading.Thread(target=lambda: Path("pipe").write_bytes(rows), daemon=True)
            writer.start()
        done = process("run", source, "-o", "out.jsonl", "-q", *flags, stdin=rows)
        assert done.exit_code == code, done.err
        assert counts() == (1, 1)
    assert (
        "--retry-failed reads the input twice" in done.err and "out.jsonl.errors.jsonl" in done.err
    )


def test_a_copy_of_an_unfinished_run_goes_on(start: Any, process: Process) -> None:
    """As from one machine to another."""
    running = _begun(start)
    running.kill()
    running.wait(120)
    shutil.copytree("work", "copy")
    assert process("run", "in.jsonl", "-o", "copy/out.jsonl", "-q").exit_code == 0
    assert counts("copy/out.jsonl") == (300, 0)
    assert read_report("copy/out.jsonl")["rows"]["resumed"] >= 8
