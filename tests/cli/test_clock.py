"""Somebody sets the clock while a run goes on: nothing that counts seconds may notice."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]
_YEAR = 365 * 86_400.0


def _prompts(count: int) -> bytes:
    return b"".join(b'{"prompt": "p%d"}\n' % index for index in range(count))


@pytest.fixture(params=[_YEAR, -_YEAR, None], ids=["forward", "back", "to and fro"])
def jumping_clock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the wall clock finds it set by a year, in one direction or in turns."""
    real, step = time.time, request.param
    jumps: Iterator[float] = (
        itertools.count(step, step) if step else itertools.cycle((_YEAR, -_YEAR, 0.0))
    )
    monkeypatch.setattr(time, "time", lambda: real() + next(jumps))


@pytest.mark.usefixtures("jumping_clock")
def test_a_run_under_a_jumping_clock(cli: Cli) -> None:
    Path("in.jsonl").write_bytes(_prompts(40) + b"bad\n")
    began = time.monotonic()
    limits = ("--time-limit", "1h", "--stall-limit", "20")
    done = cli("run", "in.jsonl", "-o", "out.jsonl", *limits, seconds=0.01)
    took_s = time.monotonic() - began
    assert done.exit_code == 3, done.err
    report = json.loads(Path("out.jsonl.report.json").read_bytes())
    assert report["rows"] == {"input": 41, "results": 40, "errors": 1, "resumed": 0}
    throughput = report["throughput"]
    assert 0.4 <= throughput["answer_s"] <= took_s and throughput["load_s"] >= 0
    assert report["started"] <= report["ended"]
    seconds = [*report["time_s"].values(), *throughput.values()]
    assert all(value is None or value >= 0 for value in seconds)


@pytest.mark.usefixtures("jumping_clock")
def test_a_time_limit_counts_true_seconds(cli: Cli) -> None:
    Path("in.jsonl").write_bytes(_prompts(400))
    stopped = cli("run", "in.jsonl", "-o", "out.jsonl", "--time-limit", "1", seconds=0.01)
    assert stopped.exit_code == 75
    state = json.loads(cli("status", "out.jsonl", "--json").out)
    assert (state["state"], state["exit_code"]) == ("stopped", 75)
    assert 10 < state["rows"]["done"] < 200
    assert cli("run", "in.jsonl", "-o", "out.jsonl").exit_code == 0


def test_a_running_run_after_the_clock_was_set(cli: Cli, start: Any) -> None:
    """What it wrote into its status lies in the future now; it has not run for negative seconds."""
    Path("in.jsonl").write_bytes(_prompts(4_000))
    running = start("run", "in.jsonl", "-o", "out.jsonl", seconds_per_row=0.02)
    path = Path("out.jsonl.partial/status.json")
    until = time.monotonic() + 120
    while not path.exists() or json.loads(path.read_bytes())["rows"] < 8:
        assert running.poll() is None and time.monotonic() < until
        time.sleep(0.01)
    status = json.loads(path.read_bytes())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: status["updated"] - 3_600)
        state = json.loads(cli("status", "out.jsonl", "--json").out)
        words = cli("status", "out.jsonl").out.decode()
    assert state["state"] == "running" and state["silent_s"] == 0
    assert 0 <= state["seconds"] < 1_000 and "-" not in words.split("running, ")[1].split("\n")[0]


def test_a_stopped_run_is_told_by_its_last_words_not_by_the_dates_of_files(cli: Cli) -> None:
    Path("in.jsonl").write_bytes(_prompts(100))
    cli("run", "in.jsonl", "-o", "out.jsonl", "--time-limit", "0.2", seconds=0.01)
    os.utime("out.jsonl.partial/report.json", (0, 0))
    state = json.loads(cli("status", "out.jsonl", "--json").out)
    assert (state["state"], state["exit_code"]) == ("stopped", 75)


def test_the_last_words_of_an_earlier_part_are_not_those_of_a_killed_one(
    cli: Cli, start: Any
) -> None:
    Path("in.jsonl").write_bytes(_prompts(300))
    cli("run", "in.jsonl", "-o", "out.jsonl", "--time-limit", "0.2", seconds=0.01)
    assert Path("out.jsonl.partial/report.json").exists()
    held = Path("out.jsonl.partial/journal").read_bytes().count(b"\n")
    running = start("run", "in.jsonl", "-o", "out.jsonl", seconds_per_row=0.02)
    until = time.monotonic() + 120
    while Path("out.jsonl.partial/journal").read_bytes().count(b"\n") < held + 5:
        assert running.poll() is None and time.monotonic() < until
        time.sleep(0.01)
    running.kill()
    running.wait(120)
    state = json.loads(cli("status", "out.jsonl", "--json").out)
    assert (state["state"], state["exit_code"]) == ("killed", None)
