"""A run in which nothing moves ends itself with stacks, exit code 6 and every finished row."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deepinfer_cli.run.watchdog import Watchdog

Cli = Callable[..., Any]

_HANGING = """
import sys, threading, time
sys.path.insert(0, {tests!r})
from fake_engine import FakeEngine
from deepinfer_cli.run import watchdog
from deepinfer_cli.main import main
watchdog._GRACE_S = 0.5

class Hanging(FakeEngine):
    def _answer(self, number, fields, sampling):
        if "hang" in fields:
            {hang}
        return super()._answer(number, fields, sampling)

sys.exit(main(["run", "in.jsonl", "-o", "out.jsonl", "--stall-limit", "0.3s", *sys.argv[1:]],
              lambda settings: Hanging(settings)))
"""
# Waits that a signal interrupts, and one that none does.
_SLEEP = "threading.Lock().acquire(); lock = threading.Lock(); lock.acquire(); lock.acquire()"
_DEAF = """
            import signal
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            time.sleep(60)"""


def _run(hang: str, *more: str) -> subprocess.CompletedProcess[str]:
    script = _HANGING.replace("{tests!r}", repr(str(Path(__file__).parent)))
    return subprocess.run(
        [sys.executable, "-c", script.replace("{hang}", hang), *more],
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.mark.parametrize("hang", [_SLEEP, _DEAF], ids=["waiting", "deaf"])
def test_a_run_that_hangs_ends_with_6_and_can_go_on(cli: Cli, hang: str) -> None:
    lines = [json.dumps({"prompt": f"p{index}"}) for index in range(20)]
    Path("in.jsonl").write_text("\n".join([*lines, json.dumps({"prompt": "h", "hang": 1})]))
    done = _run(hang)
    assert done.returncode == 6, done.stderr
    assert "no progress for" in done.stderr and "--stall-limit" in done.stderr
    assert "in _answer" in done.stderr and "in stream" in done.stderr  # the stacks
    assert "Traceback" not in done.stderr
    held = Path("out.jsonl.partial/journal").read_bytes().count(b"\n")
    assert held == 16
    state = json.loads(cli("status", "out.jsonl", "--json").out)
    assert state["rows"]["done"] == 16 and state["state"] in ("stopped", "killed")
    again = cli("run", "in.jsonl", "-o", "out.jsonl", "--stall-limit", "1h")
    assert again.exit_code == 0 and len(again.engines[0].rows) == 5


def test_a_slow_run_is_no_standstill(cli: Cli) -> None:
    Path("in.jsonl").write_bytes(b'{"prompt": "p"}\n' * 10)
    done = cli("run", "in.jsonl", "-o", "out.jsonl", "--stall-limit", "1s", seconds=0.2)
    assert done.exit_code == 0


def test_waiting_for_the_input_is_no_standstill(start: Any) -> None:
    running = start("run", "-", "--stall-limit", "0.2s", stdin=subprocess.PIPE)
    for index in range(3):
        running.stdin.write(b'{"prompt": "p%d"}\n' % index)
        running.stdin.flush()
        time.sleep(0.5)
    out, _ = running.communicate(timeout=120)
    assert running.returncode == 0 and out.count(b"\n") == 3


def test_zero_switches_it_off(cli: Cli) -> None:
    Path("in.jsonl").write_bytes(b'{"prompt": "p"}\n')
    done = cli("run", "in.jsonl", "-o", "out.jsonl", "--stall-limit", "0", seconds=0.3)
    assert done.exit_code == 0


@pytest.mark.parametrize("values, stops", [([1, 1, 1], True), ([None, None], False)])
def test_what_counts_as_progress(
    values: list[object], stops: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    stopped = threading.Event()
    dog = Watchdog(
        0.05, iter([*values, *values * 100]).__next__, stop=stopped.set, save=lambda: None
    )
    with dog.watch():
        assert stopped.wait(120 if stops else 0.3) == stops
    assert ("all stacks" in capfd.readouterr().err) == stops


def test_a_number_that_changes_is_progress() -> None:
    stopped = threading.Event()
    numbers = iter(range(10_000))
    with Watchdog(0.05, numbers.__next__, stop=stopped.set, save=lambda: None).watch():
        assert not stopped.wait(0.3)


def test_a_process_that_was_stopped_itself_is_no_standstill(start: Any) -> None:
    Path("in.jsonl").write_bytes(b'{"prompt": "p"}\n' * 40)
    running = start(
        "run", "in.jsonl", "-o", "out.jsonl", "--stall-limit", "1s", seconds_per_row=0.05
    )
    while not Path("out.jsonl.partial/journal").exists():
        assert running.poll() is None
        time.sleep(0.01)
    running.send_signal(signal.SIGSTOP)
    time.sleep(2)
    running.send_signal(signal.SIGCONT)
    assert running.wait(120) == 0
