"""kill -9 at random moments, again and again: in the end the same bytes as an unbroken run."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deepinfer_cli.main import main

Process = Callable[..., Any]
_ROOT = Path(__file__).parents[2]
_CHECKPOINT = _ROOT / "tests" / "goldens" / "tiny-a" / "checkpoint"


def _same_as_whole(output: str) -> None:
    for ending in ("", ".errors.jsonl"):
        assert Path(output + ending).read_bytes() == Path("whole.jsonl" + ending).read_bytes()


def _num_kept(output: str) -> int:
    journal = Path(output + ".partial") / "journal"
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


def _kill_when(running: subprocess.Popen[bytes], is_time: Callable[[], bool]) -> bool:
    """Kill the process at the moment; False if it ended before."""
    until = time.monotonic() + 240  # on a busy machine
    while not is_time():
        if running.poll() is not None:
            return False
        assert time.monotonic() < until
        time.sleep(0.0005)
    running.send_signal(signal.SIGKILL)
    return running.wait(120) == -signal.SIGKILL


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_fifty_kills_of_five_thousand_rows(start: Any, process: Process) -> None:
    chance = random.Random(50)
    rows = [b'{"prompt": "p%d"}' % index for index in range(5_000)]
    for place in chance.sample(range(5_000), 40):
        rows[place] = chance.choice((b"bad", b'{"prompt": "x", "fail": "too_long"}', b"{}"))
    Path("in.jsonl").write_bytes(b"\n".join(rows))
    assert process("run", "in.jsonl", "-o", "whole.jsonl", "-q").exit_code == 3

    # Thirty while rows are answered, some right after the start.
    num_kills = kept = 0
    while num_kills < 30:
        running = start("run", "in.jsonl", "-o", "out.jsonl", "-q", seconds_per_row=0.0005)
        if chance.random() < 0.2:
            at = time.monotonic() + chance.uniform(0.0, 1.0)
            was_killed = _kill_when(running, lambda at=at: time.monotonic() >= at)
        else:
            wanted = min(kept + chance.randrange(1, 180), 4_950)
            was_killed = _kill_when(running, lambda n=wanted: _num_kept("out.jsonl") >= n)
        assert was_killed and not Path("out.jsonl").exists()
        num_kills += 1
        assert _num_kept("out.jsonl") >= kept
        kept = _num_kept("out.jsonl")
    assert 1_000 < kept < 5_000
    # The rest is answered; the finish is the next run's.
    running = start("run", "in.jsonl", "-o", "out.jsonl", "-q")
    results = Path("out.jsonl.partial/results")
    assert _kill_when(running, results.exists)
    num_kills += 1

    # The others inside the finish, each on a copy of this state.
    while num_kills < 50:
        output = f"out{num_kills}.jsonl"
        shutil.copytree("out.jsonl.partial", f"{output}.partial")
        (Path(f"{output}.partial") / "results").unlink(missing_ok=True)
        delay = chance.uniform(0, 0.03)
        began: list[float] = []

        def is_time(
            folder: Path = Path(f"{output}.partial"),
            delay: float = delay,
            began: list[float] = began,
        ) -> bool:
            if not began and (folder / "results").exists():
                began.append(time.monotonic())
            return bool(began) and time.monotonic() - began[0] >= delay

        if _kill_when(start("run", "in.jsonl", "-o", output, "-q"), is_time):
            num_kills += 1
            if Path(f"{output}.partial").exists():
                again = process("run", "in.jsonl", "-o", output, "-q")
                assert again.exit_code == 3, again.err
        _same_as_whole(output)
        assert not Path(f"{output}.partial").exists()
        for path in Path().glob(f"{output}*"):
            path.unlink()

    assert process("run", "in.jsonl", "-o", "out.jsonl", "-q").exit_code == 3
    _same_as_whole("out.jsonl")
    counts = json.loads(Path("out.jsonl.report.json").read_bytes())["rows"]
    assert counts["input"] == counts["resumed"] == 5_000


@pytest.mark.crash
@pytest.mark.parametrize("num_kills", [1, pytest.param(6, marks=pytest.mark.slow)])
def test_kills_of_the_real_engine(in_tmp: Path, num_kills: int) -> None:
    rows = [
        {"prompt": f"Tell me about {index}", "temperature": index % 3 / 2}
        for index in range(6 * num_kills)
    ]
    Path("in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + "bad\n")
    options = ("--model", str(_CHECKPOINT), "--batch-invariant", "--max-tokens", "12", "-q")
    sizes = ("--max-num-seqs", "3")
    assert main(["run", "in.jsonl", "-o", "whole.jsonl", *options]) == 3
    chance = random.Random(num_kills)
    kept = 0
    for _ in range(num_kills):
        wanted = min(kept + chance.randrange(1, 3), len(rows) - 2)
        with subprocess.Popen(
            [sys.executable, "-m", "deepinfer_cli.main", "run", "in.jsonl", "-o", "out.jsonl",
             *options, *sizes]
        ) as running:  # fmt: skip
            assert _kill_when(running, lambda n=wanted: _num_kept("out.jsonl") >= n)
        kept = _num_kept("out.jsonl")
    assert not Path("out.jsonl").exists()
    assert main(["run", "in.jsonl", "-o", "out.jsonl", *options, *sizes]) == 3
    _same_as_whole("out.jsonl")
    report = json.loads(Path("out.jsonl.report.json").read_bytes())
    assert 0 < report["rows"]["resumed"] <= len(rows)


@pytest.mark.crash
@pytest.mark.parametrize("num_kills", [4, pytest.param(40, marks=pytest.mark.slow)])
def test_kills_of_a_retry(start: Any, process: Process, num_kills: int) -> None:
    """Its results stay as they are through all of it, and in the end nothing has changed."""
    chance = random.Random(num_kills)
    rows = [b'{"prompt": "p%d"}' % index for index in range(200)]
    for place in chance.sample(range(200), 60):
        rows[place] = b'{"prompt": "x", "fail": "device"}'
    Path("in.jsonl").write_bytes(b"\n".join(rows))
    command = ("run", "in.jsonl", "-o", "out.jsonl", "-q")
    assert process(*command).exit_code == 3
    for path in Path().glob("out.jsonl*"):
        shutil.copy(path, path.name.replace("out", "whole"))
    partial, killed = Path("out.jsonl.partial"), 0
    while killed < num_kills:
        if chance.random() < 0.5:  # at any moment, most of them while the results are taken over
            at = time.monotonic() + chance.uniform(0.1, 0.6)
            is_time = lambda at=at: time.monotonic() >= at  # noqa: E731
        else:
            num = 140 + chance.randrange(60)
            is_time = lambda num=num: _num_kept("out.jsonl") >= num  # noqa: E731
        running = start(*command, "--retry-failed", seconds_per_row=0.005)
        killed += _kill_when(running, is_time)
        _same_as_whole("out.jsonl")
    assert process(*command, "--retry-failed").exit_code == 3
    _same_as_whole("out.jsonl")
    assert not partial.exists()
    first, last = (
        json.loads(Path(f"{name}.jsonl.report.json").read_bytes()) for name in ("whole", "out")
    )
    assert last["rows"] == first["rows"] | {"resumed": last["rows"]["resumed"]}
    for name in ("tokens", "lengths", "kinds", "errors", "finish_reasons"):
        assert last[name] == first[name], name
    assert last["throughput"]["results"] == first["throughput"]["results"] == 140
