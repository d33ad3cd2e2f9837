"""``deepinfer status`` on runs that go on, were stopped, were killed, or are finished."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deepinfer.errors import ConfigError
from deepinfer_cli.run.status import find_run

Cli = Callable[..., Any]
Process = Callable[..., Any]


def _prompts(count: int) -> bytes:
    return b"".join(b'{"prompt": "p%d"}\n' % index for index in range(count))


def _state(cli: Cli, target: str = "out.jsonl") -> dict[str, Any]:
    done = cli("status", target, "--json")
    assert done.exit_code == 0
    state: dict[str, Any] = json.loads(done.out)
    return state


@pytest.fixture
def killed(start: Any) -> subprocess.Popen[bytes]:
    """A run of 200 rows that died after some of them."""
    Path("in.jsonl").write_bytes(b"bad\n" + _prompts(200))
    running: subprocess.Popen[bytes] = start(
        "run", "in.jsonl", "-o", "out.jsonl", "--max-num-seqs", "8", seconds_per_row=0.02
    )
    journal = Path("out.jsonl.partial/journal")
    until = time.monotonic() + 120
    while not journal.exists() or journal.read_bytes().count(b"\n") < 10:
        assert running.poll() is None and time.monotonic() < until
        time.sleep(0.01)
    running.kill()
    running.wait(120)
    return running


def test_a_run_that_goes_on(cli: Cli, start: Any) -> None:
    Path("in.jsonl").write_bytes(_prompts(4_000))
    running = start("run", "in.jsonl", "-o", "out.jsonl", seconds_per_row=0.02)
    until = time.monotonic() + 120
    while not Path("out.jsonl.partial/status.json").exists():
        assert running.poll() is None and time.monotonic() < until
        time.sleep(0.01)
    time.sleep(1.5)
    for target in ("out.jsonl", "out.jsonl.partial", "out.jsonl.partial/"):
        state = _state(cli, target)
        assert state["state"] == "running" and state["process"] == running.pid
        assert state["phase"] == "answering" and state["rows"]["done"] < 4_000
        assert state["resume"] == "deepinfer run in.jsonl -o out.jsonl"
    words = cli("status", "out.jsonl").out.decode()
    assert f"running, answering (process {running.pid} on" in words and "rows/s" in words
    again = cli("run", "in.jsonl", "-o", "out.jsonl")  # asking has not broken the lock
    assert again.exit_code == 5


def test_a_killed_run_is_counted_in_its_journal_and_can_go_on(
    cli: Cli, killed: subprocess.Popen[bytes], process: Process
) -> None:
    held = Path("out.jsonl.partial/journal").read_bytes().count(b"\n")
    state = _state(cli)
    assert state["state"] == "killed" and state["process"] == killed.pid
    assert (state["rows"]["done"], state["rows"]["failed"]) == (held, 1)
    assert state["resume"] == "deepinfer run in.jsonl -o out.jsonl --max-num-seqs 8"
    before = {path: path.read_bytes() for path in Path("out.jsonl.partial").iterdir()}
    words = cli("status", "out.jsonl").out.decode()
    assert "is gone; its finished rows are kept" in words and state["resume"] in words
    assert {path: path.read_bytes() for path in Path("out.jsonl.partial").iterdir()} == before
    done = process(*state["resume"].split()[1:])
    assert done.exit_code == 3
    report = json.loads(Path("out.jsonl.report.json").read_bytes())
    assert report["rows"]["resumed"] == held


def test_a_torn_journal_is_counted_without_its_last_line(
    cli: Cli, killed: subprocess.Popen[bytes]
) -> None:
    journal = Path("out.jsonl.partial/journal")
    held = journal.read_bytes().count(b"\n")
    journal.write_bytes(journal.read_bytes()[:-5])
    assert _state(cli)["rows"]["done"] == held - 1


def test_a_stopped_run_says_why(cli: Cli) -> None:
    Path("in.jsonl").write_bytes(_prompts(400))
    cli("run", "in.jsonl", "-o", "out.jsonl", "--time-limit", "1", seconds=0.01)
    state = _state(cli)
    assert (state["state"], state["exit_code"]) == ("stopped", 75)
    assert "--time-limit" in state["message"]
    assert state["rows"]["done"] + state["rows"]["left"] == state["rows"]["total"]


def test_a_failed_run_says_why(cli: Cli) -> None:
    Path("in.jsonl").write_bytes(_prompts(8) + b'{"crash": 1}\n')
    cli("run", "in.jsonl", "-o", "out.jsonl")
    state = _state(cli)
    assert (state["state"], state["exit_code"], state["rows"]["done"]) == ("failed", 1, 8)
    assert "the device is gone" in state["message"]


def test_a_finished_run(cli: Cli) -> None:
    Path("in.jsonl").write_bytes(_prompts(3) + b"bad\n")
    cli("run", "in.jsonl")
    for target in ("in.jsonl", "in.out.jsonl", "in.out.jsonl.report.json"):
        state = _state(cli, target)
        assert (state["state"], state["exit_code"]) == ("finished", 3)
        assert state["rows"]["done"] == 4 and state["rows"]["failed"] == 1
    told = cli("status", "in.jsonl").out.decode()
    assert "correct the rows" in told and ".errors.jsonl" in told and "--retry-failed" not in told


def test_rows_that_the_engine_gave_up_may_be_tried_again(cli: Cli) -> None:
    Path("in.jsonl").write_bytes(_prompts(3))
    cli("run", "in.jsonl")
    report = Path("in.out.jsonl.report.json")
    said = json.loads(report.read_bytes())
    said["rows"] |= {"results": 2, "errors": 1}
    said["errors"] = {"engine_error": 1}
    report.write_text(json.dumps(said))
    told = cli("status", "in.jsonl").out.decode()
    assert "--retry-failed" in told and "correct the rows" not in told


def test_failed_rows_of_merged_shards_are_tried_again_as_said(cli: Cli) -> None:
    """What status says about a merged output is possible, and mends it."""
    rows = [{"prompt": f"p{i}"} | ({"fail": "engine_error"} if i == 2 else {}) for i in range(5)]
    Path("in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = ("run", "in.jsonl", "-o", "out.jsonl", "--shard")
    assert [cli(*run, f"{i}/2").exit_code for i in (1, 2)] == [3, 0]
    assert cli("merge", "-o", "out.jsonl").exit_code == 3
    told = cli("status", "out.jsonl").out.decode()
    assert "deepinfer run in.jsonl -o out.jsonl --retry-failed, and the shards' other f" in told
    again = cli(*run[:-1], "--retry-failed")
    assert again.exit_code == 3 and again.engines[0].rows == [2]
    assert len(Path("out.jsonl").read_bytes().splitlines()) == 4
    assert "--retry-failed" in cli("status", "out.1-of-2.jsonl").out.decode()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "[" * 10_000, '{"schema":"deepinfer.report/1","rows":5}', "\udcff"]
)
def test_rubbish_in_place_of_its_files_is_no_crash(cli: Cli, text: str) -> None:
    data = text.encode("utf-8", "surrogateescape")
    Path("out.jsonl.report.json").write_bytes(data)
    for verb in ("status", "report"):
        done = cli(verb, "out.jsonl")
        assert done.exit_code == 2 and "out.jsonl.report.json is not a " in done.err
    Path("out.jsonl.partial").mkdir()
    (Path("out.jsonl.partial") / "lock").touch()
    for name in ("status.json", "report.json", "journal"):
        (Path("out.jsonl.partial") / name).write_bytes(data)
    assert _state(cli)["state"] == "killed"
    data = b'{"schema": "deepinfer.status/1", "process": "x"}'
    Path("out.jsonl.partial/status.json").write_bytes(data)
    assert _state(cli)["resume"] is None


def test_no_run_at_all(cli: Cli) -> None:
    done = cli("status", "out.jsonl")
    assert done.exit_code == 2 and done.err.startswith("deepinfer: no run of out.jsonl")
    with pytest.raises(ConfigError):
        find_run("")


def test_shards_are_named(cli: Cli) -> None:
    Path("in.jsonl").write_bytes(_prompts(4))
    cli("run", "in.jsonl", "-o", "out.jsonl", "--shard", "2/3")
    done = cli("status", "out.jsonl")
    assert done.exit_code == 2 and "only shards: out.2-of-3.jsonl" in done.err
    assert _state(cli, "out.2-of-3.jsonl")["state"] == "finished"


def test_the_resume_line_has_folder_variables_and_stdin(
    cli: Cli, in_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("in.jsonl").write_bytes(_prompts(8) + b'{"crash": 1}\n')
    monkeypatch.setenv("DEEPINFER_MAX_TOKENS", "7")
    cli("run", "in.jsonl", "-o", "my out.jsonl")
    Path("sub").mkdir()
    monkeypatch.chdir("sub")
    state = _state(cli, "../my out.jsonl")
    assert state["resume"] == (
        f"cd {in_tmp} && DEEPINFER_MAX_TOKENS=7 deepinfer run in.jsonl -o 'my out.jsonl'"
    )


def test_no_more_rows_are_done_than_there_are(cli: Cli) -> None:
    """An input that somebody emptied is no total."""
    Path("in.jsonl").write_bytes(_prompts(8) + b'{"crash": 1}\n')
    cli("run", "in.jsonl", "-o", "out.jsonl")
    Path("in.jsonl").write_bytes(b"")
    done = cli("run", "in.jsonl", "-o", "out.jsonl")
    assert done.exit_code == 4 and done.err.endswith("kept in out.jsonl.partial\n")
    assert "rows      8 done\n" in cli("status", "out.jsonl").out.decode()
    assert _state(cli)["rows"]["total"] is None
