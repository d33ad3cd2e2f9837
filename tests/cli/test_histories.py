"""Any history of an output (broken off, killed, retried, changed, limited) ends as if there had
been none, and no report on the way contradicts itself."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run_files import read_report, write_rows

Cli = Callable[..., Any]
_RUN = ("run", "in.jsonl", "-o", "out.jsonl")
_NUM_ROWS = 24


def _rows(chance: random.Random) -> list[Any]:
    """Some fail in the engine, some before it, some are no JSON."""
    others: tuple[Any, ...] = (
        {"prompt": "x", "fail": "engine_error"},
        {"no": "prompt"},
        b"bad",
        [1],
    )
    return [
        chance.choice(others) if chance.random() < 0.2 else {"prompt": f"p{chance.randrange(99)}"}
        for _ in range(_NUM_ROWS)
    ]


def _check(report: dict[str, Any]) -> None:
    """What holds of every report."""
    rows, speed = report["rows"], report["throughput"]
    done = rows["results"] + rows["errors"]
    assert 0 <= rows["resumed"] <= done <= rows["input"] <= _NUM_ROWS + 1
    assert done == rows["input"] or report["status"] != "finished"
    assert sum(report["errors"].values()) == rows["errors"]
    assert sum(report["kinds"].values()) == rows["results"]
    assert report["tokens"]["completion_tokens"] == report["tokens"]["prompt_tokens"]
    assert report["lengths"]["prompt"]["num"] == rows["results"]
    assert sum(report["timeline"]["completion_tokens"]) == speed["completion_tokens"]
    rate, seconds = speed["rows_per_s"], speed["answer_s"]  # which are milliseconds here
    assert rate * (seconds - 0.002) <= speed["results"] <= rate * (seconds + 0.002) + 1e-9
    assert report["started"] <= report["ended"]


def _break(cli: Cli, chance: random.Random, rows: list[Any], *flags: str) -> None:
    """A part that ends early in one of many ways; what it left, if it was killed, is not all."""
    way = chance.choice(["crash", "time", "errors", "limit", "killed"])
    if way in ("crash", "killed"):
        # In a retry at the end: rows that move are answered again, and tell less of the first run.
        place = len(rows) if flags else chance.randrange(len(rows) + 1)
        write_rows("in.jsonl", [*rows[:place], {"crash": 1}, *rows[place:]])
    options = {"time": ("--time-limit", "0"), "errors": ("--max-errors", "1")}.get(way, ())
    if way == "limit":
        options = ("--limit", str(chance.randrange(_NUM_ROWS)), "--max-errors", "0")
    done = cli(*_RUN, *options, *flags, window=chance.randrange(1, 9))
    assert done.exit_code in (0, 1, 2, 3, 4, 75), done.err
    assert "Traceback" not in done.err
    partial = Path("out.jsonl.partial")
    if (partial / "report.json").exists():
        _check(json.loads((partial / "report.json").read_bytes()))
        if way == "killed":
            (partial / "report.json").unlink()
    write_rows("in.jsonl", rows)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seeds", [range(6), pytest.param(range(6, 600), marks=pytest.mark.slow)])
def test_histories(cli: Cli, in_tmp: Path, monkeypatch: pytest.MonkeyPatch, seeds: range) -> None:
    for seed in seeds:
        chance = random.Random(seed)
        monkeypatch.setattr("deepinfer_cli.run.job._KEEP_SECONDS", chance.choice((0.0, 10.0)))
        rows = _rows(chance)
        write_rows("in.jsonl", rows)
        try:
            _live(cli, chance, rows)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        for path in in_tmp.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _live(cli: Cli, chance: random.Random, rows: list[Any]) -> None:
    for _ in range(chance.randrange(5)):
        _break(cli, chance, rows)
        if Path("out.jsonl").exists():
            _check(read_report())
            Path("out.jsonl").unlink()  # a limit that was reached: it is to be a longer one
        if chance.random() < 0.3:
            rows[chance.randrange(_NUM_ROWS)] = {"prompt": "changed"}
            write_rows("in.jsonl", rows)
    # With --force, as the row that crashed may have been one more than there are now.
    last = cli(*_RUN, "--force", window=chance.randrange(1, 9))
    assert last.exit_code in (0, 3), last.err
    first = read_report()
    _check(first)
    assert cli("run", "in.jsonl", "-o", "whole.jsonl").exit_code == last.exit_code
    _same(read_report("whole.jsonl"))
    if last.exit_code == 0:
        return
    for _ in range(chance.randrange(4)):
        _break(cli, chance, rows, "--retry-failed")
        _same(None)
    again = cli(*_RUN, "--retry-failed")
    assert again.exit_code == 3, again.err
    report = read_report()
    _check(report)
    _same(report)
    for name in ("tokens", "lengths", "kinds", "errors", "finish_reasons", "preemptions"):
        assert report[name] == first[name], name
    assert report["throughput"]["results"] >= first["throughput"]["results"]
    assert report["throughput"]["answer_s"] >= first["throughput"]["answer_s"]


def _same(report: dict[str, Any] | None) -> None:
    """The files are those of the unbroken run; so is the report, but for what was measured."""
    for ending in ("", ".errors.jsonl"):
        mine, whole = Path(f"out.jsonl{ending}"), Path(f"whole.jsonl{ending}")
        assert mine.exists() == whole.exists()
        assert not mine.exists() or mine.read_bytes() == whole.read_bytes()
    if report is not None:
        whole_report = read_report("whole.jsonl")
        for name in ("kinds", "errors", "finish_reasons", "tokens", "lengths"):
            assert report[name] == whole_report[name], name
        assert report["rows"] | {"resumed": 0} == whole_report["rows"] | {"resumed": 0}
